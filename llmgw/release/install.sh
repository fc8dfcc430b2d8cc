#!/bin/sh
# Installs a file of a release on this machine. POSIX sh and what every Linux has (coreutils, grep, sed, tar, gzip).
#
#   sh install.sh FILE NAME SHA256 [ROOT]            install, and switch the program over
#   sh install.sh --prepare FILE NAME SHA256 [ROOT]  install beside what runs; switches nothing
#   sh install.sh --switch FOLDER [ROOT]             switch to a folder that was prepared
#
# FILE is the content wherever it lies, NAME what the release called it, SHA256 its digest in hex. It goes to
# ROOT/opt/llmgw/VERSION-<12 digits of SHA256>, and ROOT/usr/local/bin/llmgw is a symlink to the program there.
# The last line of output is `installed VERSION` or `unchanged VERSION`, of --prepare `prepared FOLDER`.
# Errors: one sentence on standard error, exit code 1; then nothing was switched and nothing is left behind.
# A second one that is started meanwhile waits for the first.
#
# Everything is in functions and the last line starts it: a script that arrives by half does nothing, and one
# that is read from standard input (sh -s over ssh) is not eaten by what it starts.
set -u
umask 022

fail() {
  printf '%s\n' "$*" >&2
  exit 1
}

# That the disk with folder $1 is full, when it is (tar says no more than "Wrote only 2560 of 10240 bytes"); else the
# sentence in $2 and what the command said.
fail_of() {
  free_kb=$(df -Pk "$1" 2>/dev/null | { read -r _ && read -r _ _ _ free _ && printf %s "$free"; })
  case "$free_kb" in *[!0-9]*) free_kb='' ;; esac
  [ "${free_kb:-9999}" -ge 64 ] || said="No space left on device"
  case "$said" in
    *"No space left on device"* | *"Disk quota exceeded"*)
      fail "The disk that holds $1 is full; make room there and install again. Nothing was changed." ;;
    *"Read-only file system"*)
      fail "$1 lies on a file system that is mounted read-only; remount it and install again." ;;
    *) fail "$2: $(printf '%s' "$said" | tail -n 3 | tr '\n' ' ')" ;;
  esac
}

clean_up() {
  if [ -n "${broken:-}" ]; then
    # What was there goes back, unless what takes its place is in it.
    [ -e "$folder" ] || mv -T "$broken" "$folder"
    rm -rf "$broken"
  fi
  [ -z "${new:-}" ] || rm -rf "$new"
  [ -z "${link_new:-}" ] || rm -f "$link_new"
  # A signal may come right after the symlink's exchange.
  [ -z "${unused:-}" ] || [ "$(readlink "$link")" = "$unused/bin/llmgw" ] || rm -rf "$unused"
}

# Others that install here wait: each would take the other's half-made or prepared folder for something to remove.
# What is locked is the folder itself, and the lock goes with this process, however that ends.
lock() {
  locked=no
  command -v flock >/dev/null 2>&1 || return 0
  exec 9<"$versions"
  waited_s=0
  until flock -n 9; do
    [ "$waited_s" -lt "$wait_s_max" ] ||
      fail "Another installation has been at work in $versions for $wait_s_max s (ps shows an install.sh, or a" \
        "sh -s): wait for it or end it, then install again."
    sleep 1
    waited_s=$((waited_s + 1))
  done
  locked=yes
}

set_root() {
  root=${1%/}
  case "$root" in
    "") [ "$(id -u)" = 0 ] || fail "Installing needs root: run it with sudo, or as root." ;;
    /*) ;;
    *) fail "The root folder $root is no absolute path." ;;
  esac
  case "$root" in
    *[!A-Za-z0-9/._-]*) fail "The root folder $root has characters that a path to a program should not have." ;;
  esac
  versions=$root/opt/llmgw
  link=$root/usr/local/bin/llmgw
}

# Sets kind, version, machine and python from the name of a file of a release.
read_name() {
  machine='' python=''
  case "$1" in
    llmgw-*-py3-none-any.whl) kind=wheel version=${1%-py3-none-any.whl} ;;
    llmgw-*-wheels-cp3*-*.tar.gz)
      kind=wheels version=${1%%-wheels-*} machine=${1##*-} machine=${machine%.tar.gz}
      python=${1#*-wheels-cp3} python=${python%%-*} ;;
    llmgw-*-linux-*.tar.gz) kind=folder version=${1%-linux-*} machine=${1##*-} machine=${machine%.tar.gz} ;;
    llmgw-*-linux-*) kind=single version=${1%-linux-*} machine=${1##*-} ;;
    *) kind='' version='' ;;
  esac
  version=${version#llmgw-}
  case "$kind/$version/$python/$machine" in
    /* | */[!0-9]*/*/* | */*[!0-9a-z.]*/*/* | *//*/* | */*/*[!0-9]*/* | */*/*/*[!a-z0-9_]* | \
      wheels/*//* | wheels/*/ | folder/*/ | single/*/)
      fail "$1 is not the name of a file of a release; keep the name that it was released under." ;;
  esac
}

check_machine() {
  here=$(uname -m)
  if [ -n "$machine" ] && [ "$machine" != "$here" ]; then
    fail "$name is for $machine and this machine is $here: take the release's file for $here."
  fi
}

# Sets interpreter: a Python that fits, and can make virtual environments.
find_python() {
  if [ "$kind" = wheels ]; then
    wanted="Python 3.$python" candidates="python3.$python python3"
    fits="sys.version_info[:2] == (3, $python)"
  else
    wanted='Python 3.11 or newer' candidates='python3 python3.15 python3.14 python3.13 python3.12 python3.11'
    fits='sys.version_info >= (3, 11)'
  fi
  without="or install the single file (llmgw-$version-linux-$here), which needs no Python"
  interpreter=''
  for one in $candidates; do
    if "$one" -c "import sys; sys.exit(not ($fits))" 2>/dev/null; then
      interpreter=$one
      break
    fi
  done
  if [ -z "$interpreter" ]; then
    found=$(python3 -c 'import platform; print("Python", platform.python_version())' 2>/dev/null || echo none)
    fail "$name needs $wanted and this machine has $found: install that Python, $without."
  fi
  if ! "$interpreter" -c 'import venv, ensurepip' 2>/dev/null; then
    short=$("$interpreter" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    fail "$short on this machine cannot make virtual environments: apt-get install $short-venv, $without."
  fi
}

# Of the build's own record, in the unpacked folder: does this machine have the glibc that it was made for?
check_glibc() {
  [ -f "$1/BUILD" ] || return 0
  needed=$(sed -n 's/^glibc: //p' "$1/BUILD")
  [ -n "$needed" ] || return 0
  has=$(getconf GNU_LIBC_VERSION 2>/dev/null) || has=''
  has=${has#glibc }
  if [ -z "$has" ]; then
    fail "$name needs glibc $needed or newer, and this machine has another C library: it cannot run here."
  fi
  if [ "${has%%.*}" -lt "${needed%%.*}" ] ||
    { [ "${has%%.*}" = "${needed%%.*}" ] && [ "${has#*.}" -lt "${needed#*.}" ]; }; then
    fail "$name needs glibc $needed or newer and this machine has $has: use a build for older systems," \
      "or a newer system."
  fi
}

unpack() {
  # Neither owners nor set-user-id bits nor folders that anybody may write to.
  case "$kind" in
    single)
      said=$(sh "$file" --unpack "$new" 2>&1 </dev/null) || fail_of "$versions" "$name could not be unpacked"
      check_glibc "$new" ;;
    folder)
      said=$(tar --no-same-owner --no-same-permissions --strip-components=1 -xzf "$file" -C "$new" 2>&1 </dev/null) ||
        fail_of "$versions" "$name could not be unpacked"
      check_glibc "$new" ;;
    wheels)
      mkdir "$new/wheels" || fail "$new/wheels could not be made."
      said=$(tar --no-same-owner --no-same-permissions --strip-components=1 -xzf "$file" -C "$new/wheels" 2>&1 </dev/null) ||
        fail_of "$versions" "$name could not be unpacked"
      check_glibc "$new/wheels"
      # Whatever this machine's pip is set up to do, all that it may take lies here.
      PIP_CONFIG_FILE=/dev/null
      export PIP_CONFIG_FILE
      make_environment --isolated --no-index --find-links "$new/wheels" "llmgw==$version"
      rm -rf "$new/wheels" ;;
    wheel)
      # pip goes by the name of the file.
      mkdir "$new/wheel" && ln -s "$file" "$new/wheel/$name" || fail "$new/wheel could not be made."
      make_environment "$new/wheel/$name"
      rm -rf "$new/wheel" ;;
  esac
}

# A virtual environment in $new with what pip installs for "$@", whose scripts name the folder it will be.
make_environment() {
  said=$("$interpreter" -m venv --prompt llmgw "$new" 2>&1 </dev/null) ||
    fail_of "$versions" "$interpreter could not make an environment"
  said=$("$new/bin/python" -m pip install --quiet --no-input --no-cache-dir --disable-pip-version-check "$@" \
    2>&1 </dev/null) || fail_of "$versions" "pip could not install $name"
  for script in "$new"/bin/* "$new/pyvenv.cfg"; do
    if [ -f "$script" ] && [ ! -L "$script" ] && grep -qF "$new" "$script"; then
      said=$(sed -i "s|$new|$folder|g" "$script" 2>&1) || fail_of "$versions" "$script could not be written"
    fi
  done
}

# Does the program in folder $1 run, and is it what it should be?
proven() {
  said=$(timeout 120 "$1/bin/llmgw" --version 2>&1 </dev/null) || return 1
  case "$said " in
    "llmgw $version "*) return 0 ;;
    *) return 1 ;;
  esac
}

# What interrupted runs have left: each temporary folder is called after the process that made it. Under the lock
# there is no other run, whoever has that number now.
remove_left_behind() {
  for one in "$versions"/.new-*; do
    [ -d "$one" ] || continue
    by=${one##*/.new-}
    if [ "$locked" = no ] && kill -0 "${by%%-*}" 2>/dev/null; then continue; fi
    rm -rf "$one"
  done
}

prepare() {
  file=$1 name=$2 sha256=$3
  read_name "$name"
  check_machine
  [ -f "$file" ] && [ -r "$file" ] || fail "$file is not there, or cannot be read."
  case "$file" in /*) ;; *) file=$(pwd)/$file ;; esac
  case "$sha256" in
    *[!0-9a-f]*) fail "$sha256 is no SHA-256 in lower-case hex." ;;
  esac
  actual=$(sha256sum <"$file") || fail "sha256sum could not read $file."
  if [ "${actual%% *}" != "$sha256" ]; then
    fail "The content of $name is not what it should be (its SHA-256 is ${actual%% *} instead of $sha256):" \
      "the transfer broke, or the file was changed. Send it again."
  fi
  folder=$versions/$version-$(printf '%.12s' "$sha256")
  said=$(mkdir -p "$versions" 2>&1) || fail_of "$(there_of "$versions")" "$versions could not be made"
  lock
  remove_left_behind
  changed=no
  if [ -d "$folder" ] && proven "$folder"; then return 0; fi
  case "$kind" in wheel | wheels) find_python ;; esac
  new=$versions/.new-$$
  said=$(mkdir "$new" 2>&1) || fail_of "$versions" "$new could not be made"
  unpack
  sync -f "$new" 2>/dev/null || sync
  if [ -e "$folder" ]; then
    # It is there and does not run; something may still have files of it open, so it goes after the exchange.
    broken=$versions/.new-$$-broken
    said=$(mv -T "$folder" "$broken" 2>&1) || fail_of "$versions" "$folder is broken and could not be moved away"
    said=$(mv -T "$new" "$folder" 2>&1) || fail_of "$versions" "$folder could not be put in place"
    rm -rf "$broken"
    broken=''
  else
    said=$(mv -T "$new" "$folder" 2>&1) || fail_of "$versions" "$folder could not be put in place"
    unused=$folder
  fi
  new=''
  # The program's symlink, which may lie on another disk, is never there before what it points to.
  sync "$versions" 2>/dev/null || :
  if ! proven "$folder"; then
    rm -rf "$folder"
    fail "$name was unpacked, but its llmgw --version did not say llmgw $version. It said:" \
      "$(printf '%.300s' "$said" | tr '\n' ' ')"
  fi
  changed=yes
}

# Is a process running from folder $1? Its program lies there, or is an interpreter that was started by that path.
in_use() {
  # The kernel names a program by where it really lies: /opt may be a symlink.
  real=$(cd "$1" && pwd -P) || return 0
  # The pattern comes from standard input, or grep would find it in its own command line.
  if printf '%s/\n%s/\n' "$1" "$real" | grep -qsaF -f - /proc/[0-9]*/cmdline; then return 0; fi
  ls -l /proc/[0-9]*/exe 2>/dev/null | grep -qF -e "-> $1/" -e "-> $real/"
}

# The folder of $1, or above it, that is there.
there_of() {
  above=$1
  while [ ! -d "$above" ]; do
    above=${above%/*}
    above=${above:-/}
  done
  printf '%s' "$above"
}

switch() {
  folder=${1%/}
  case "$folder" in
    "$versions"/*/*) fail "$folder is no folder of $versions." ;;
    "$versions"/*) ;;
    *) fail "$folder is no folder of $versions." ;;
  esac
  version=${folder##*/} version=${version%-*}
  [ -x "$folder/bin/llmgw" ] || fail "$folder has no program in it; prepare it first."
  proven "$folder" || fail "$folder/bin/llmgw --version did not say llmgw $version, so nothing was switched:" \
    "$(printf '%.300s' "$said" | tr '\n' ' ')"
  before=$(readlink "$link" 2>/dev/null) || before=''
  if [ "$before" = "$folder/bin/llmgw" ]; then
    echo "unchanged $version"
    return 0
  fi
  [ ! -d "$link" ] || fail "$link is a folder; it should be the program. Move it away."
  place=${link%/*}
  said=$(mkdir -p "$place" 2>&1) || fail_of "$(there_of "$place")" "$place could not be made"
  [ "$locked" = no ] || rm -f "$link".new-* # of runs that were killed
  link_new=$link.new-$$
  said=$(ln -s "$folder/bin/llmgw" "$link_new" 2>&1) || fail_of "$place" "$link_new could not be made"
  said=$(mv -T "$link_new" "$link" 2>&1) || fail_of "$place" "$link could not be replaced"
  link_new='' unused=''
  kept=${before%/bin/llmgw}
  for one in "$versions"/[0-9]*-[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]; do
    [ -d "$one" ] && [ "$one" != "$folder" ] && [ "$one" != "$kept" ] || continue
    in_use "$one" || rm -rf "$one"
  done
  echo "installed $version"
}

main() {
  # What commands say is looked at; and no package that somebody's shell points at is part of what is installed.
  LC_ALL=C
  export LC_ALL
  unset PYTHONHOME PYTHONPATH PYTHONSTARTUP PIP_PREFIX PIP_ROOT PIP_TARGET PIP_USER
  wait_s_max=600
  trap clean_up EXIT
  trap 'exit 1' HUP INT TERM
  usage="usage: install.sh [--prepare] FILE NAME SHA256 [ROOT] | install.sh --switch FOLDER [ROOT]"
  case "${1:-}" in
    --switch)
      [ $# -ge 2 ] && [ $# -le 3 ] || fail "$usage"
      set_root "${3:-}"
      [ -d "$versions" ] || fail "There is no $versions on this machine; install a file of a release first."
      lock
      switch "$2" ;;
    --prepare)
      [ $# -ge 4 ] && [ $# -le 5 ] || fail "$usage"
      set_root "${5:-}"
      prepare "$2" "$3" "$4"
      unused=''
      echo "prepared $folder" ;;
    -*) fail "$usage" ;;
    *)
      [ $# -ge 3 ] && [ $# -le 4 ] || fail "$usage"
      set_root "${4:-}"
      prepare "$1" "$2" "$3"
      if [ "$changed" = no ] || [ "$(readlink "$link" 2>/dev/null)" != "$folder/bin/llmgw" ]; then
        switch "$folder"
      else
        echo "installed $version" # what the link points to was broken, and is new
      fi ;;
  esac
}

main "$@"
