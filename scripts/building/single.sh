#!/bin/sh
# llmgw @VERSION@ for Linux on @MACHINE@, in one file: this script, and after its last line a tarball of the folder
# that it runs from. It is unpacked once, never below /tmp, where a long-lived program would lose its files.
#   llmgw …             unpacks into $LLMGW_UNPACKED (default: ~/.cache/llmgw, root's: /var/cache/llmgw), and runs
#   llmgw --unpack DIR  unpacks into DIR, which must be empty or not there, and runs nothing
# version: @VERSION@
# machine: @MACHINE@
# glibc: @GLIBC@
# build: @BUILD@
set -u

fail() {
  printf '%s\n' "$*" >&2
  exit 1
}

check() {
  here="$(uname -s) $(uname -m)"
  [ "$here" = "Linux @MACHINE@" ] ||
    fail "This file of llmgw is for Linux @MACHINE@ and this machine is $here: take the release's file for it."
  has=$(getconf GNU_LIBC_VERSION 2>/dev/null) || has=''
  has=${has#glibc }
  needed=@GLIBC@
  [ -n "$has" ] ||
    fail "llmgw @VERSION@ needs glibc $needed or newer, and this machine has another C library: it cannot run here."
  if [ "${has%%.*}" -lt "${needed%%.*}" ] ||
    { [ "${has%%.*}" = "${needed%%.*}" ] && [ "${has#*.}" -lt "${needed#*.}" ]; }; then
    fail "llmgw @VERSION@ needs glibc $needed or newer and this machine has $has: use a build for older systems," \
      "or a newer system."
  fi
}

# Into folder $1.
unpack() {
  said=$({ tail -c +@OFFSET@ "$0" | tar --no-same-owner --strip-components=1 -xzf - -C "$1"; } 2>&1) && return 0
  free_kb=$(df -Pk "$1" 2>/dev/null | awk 'NR == 2 { print $4 }')
  rm -rf "$1"
  [ "${free_kb:-9999}" -ge 64 ] || fail "No space left on device: $1 could not hold llmgw @VERSION@; make room there."
  fail "llmgw @VERSION@ could not be unpacked into $1: $(printf '%s' "$said" | tail -n 3 | tr '\n' ' ')"
}

if [ "${1:-}" = --unpack ]; then
  [ $# = 2 ] || fail "usage: $0 --unpack DIR"
  check
  umask 022
  mkdir -p "$2" || exit 1
  [ -z "$(ls -A "$2")" ] || fail "$2 is not empty."
  unpack "$2"
  exit 0
fi

if [ -n "${LLMGW_UNPACKED:-}" ]; then
  place=$LLMGW_UNPACKED
elif [ "$(id -u)" = 0 ]; then
  place=/var/cache/llmgw # HOME may be that of whoever called sudo
elif [ -n "${XDG_CACHE_HOME:-${HOME:-}}" ]; then
  place=${XDG_CACHE_HOME:-$HOME/.cache}/llmgw
else
  fail "llmgw has no folder to unpack itself into: set HOME, or LLMGW_UNPACKED to one that only you can write to."
fi
folder=$place/@VERSION@-@BUILD@

# Whoever may write to a folder decides what runs from it.
must_be_own() {
  [ -O "$1" ] || fail "$1 belongs to somebody else: set LLMGW_UNPACKED to a folder of your own."
  case "$(ls -ld "$1/.")" in
    d????-??-*) ;;
    *) fail "Others may write to $1, and so to what runs from it: chmod go-w $1, or set LLMGW_UNPACKED to another folder." ;;
  esac
}

# A folder without the program is what something that tidies up has left of it.
if [ ! -e "$folder/bin/llmgw" ]; then
  check
  (umask 077 && mkdir -p "$place") 2>/dev/null ||
    fail "llmgw unpacks itself once, and $place cannot be made: set LLMGW_UNPACKED to a folder that you can write to."
fi
must_be_own "$place"
if [ ! -e "$folder/bin/llmgw" ]; then
  new=$place/.new-$$
  # Of runs that were killed.
  for one in "$place"/.new-*; do
    [ ! -d "$one" ] || kill -0 "${one##*/.new-}" 2>/dev/null || rm -rf "$one"
  done
  (umask 077 && mkdir "$new") 2>/dev/null ||
    fail "llmgw unpacks itself once, and $new cannot be made: set LLMGW_UNPACKED to a folder that you can write to."
  trap 'rm -rf "$new"' EXIT
  trap 'exit 1' HUP INT TERM
  unpack "$new"
  # When another one was first, its folder is as good.
  [ -e "$folder/bin/llmgw" ] || rm -rf "$folder"
  mv -T "$new" "$folder" 2>/dev/null || [ -e "$folder/bin/llmgw" ] || fail "$folder could not be made."
  trap - EXIT HUP INT TERM
  rm -rf "$new"
fi
must_be_own "$folder"
# A shell ends where it cannot exec, so this is asked before: nothing can be executed where noexec is mounted.
[ -x "$folder/bin/llmgw" ] ||
  fail "$folder/bin/llmgw cannot be run; if it is mounted noexec, set LLMGW_UNPACKED to another folder."
exec "$folder/bin/llmgw" "$@"
