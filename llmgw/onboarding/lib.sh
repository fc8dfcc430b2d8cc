# Shared by the scripts that change a node: put files in place whole, and remember that a restart is due.
# LLMGW_ROOT is a folder to take for /, as for an image that is prepared; on a node it is not set.
R=${LLMGW_ROOT:-}
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
etc=$R/etc/llmgw
units=$R/etc/systemd/system
umask 022
me=$(id -u)
due=$etc/.restart-due

die() {
  echo "$*" >&2
  exit 1
}

# changed WHAT: tell it, and have the agent restarted by whichever run gets that far.
changed() {
  mkdir -p "$etc" && : >"$due" || die "$due cannot be written"
  echo "changed $1"
}

# same FILE TARGET MODE: TARGET is ours, has that mode, and FILE's content.
same() {
  [ -f "$2" ] && [ ! -L "$2" ] && [ "$(stat -c '%a %u' "$2")" = "$3 $me" ] && cmp -s "$1" "$2"
}

# fill FILE TARGET MODE: TARGET has FILE's content and MODE, whole or not at all.
fill() {
  # mv would put it into a folder of that name, and say nothing.
  [ ! -d "$2" ] || [ -L "$2" ] || die "$2 is a folder, and a file belongs there: move it away"
  mkdir -p "$(dirname "$2")" &&
    rm -f "$2.llmgw-new" &&
    (umask 077 && cp "$1" "$2.llmgw-new") &&
    chmod "$3" "$2.llmgw-new" &&
    { sync "$2.llmgw-new" 2>/dev/null || :; } &&
    mv -fT "$2.llmgw-new" "$2" || {
    rm -f "$2.llmgw-new"
    die "$2 was not written"
  }
}

# put FILE TARGET MODE: the same, only where something differs.
put() {
  if same "$1" "$2" "$3"; then
    echo "same $2"
  else
    changed "$2"
    fill "$1" "$2" "$3"
  fi
}

one_at_a_time() {
  command -v flock >/dev/null 2>&1 || return 0
  mkdir -p "$R/run"
  exec 9>"$R/run/llmgw-onboard.lock"
  flock -n 9 || die "another run of onboard-node works on this node; wait for its end and run this again"
}
