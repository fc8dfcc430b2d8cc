#!/bin/sh
# Before each start of the agent: a new program that has been started several times without getting as far as the
# server is taken back. It needs a shell and coreutils only, so that it works when the new program does not.
#
#   sh settle.sh FOLDER
#
# FOLDER/marker is written by the agent that switches (llmgw/agent/upgrade/marker.py): lines of key=value. It always
# exits 0: whatever is wrong here, the agent is started.
set -u

STARTS_MAX=3
WITHIN_S=600

folder=${1:?settle.sh needs the folder of the marker}
marker=$folder/marker
[ -r "$marker" ] || exit 0

outcome= tries= first_try= old= program= version=
while IFS='=' read -r key value; do
    case $key in
        outcome) outcome=$value ;;
        tries) tries=$value ;;
        first_try) first_try=$value ;;
        old) old=$value ;;
        program) program=$value ;;
        version) version=$value ;;
    esac
done <"$marker"
[ "$outcome" = trial ] || exit 0

case $tries in '' | *[!0-9]*) tries=0 ;; esac
case $first_try in '' | *[!0-9]*) first_try=0 ;; esac
now=$(date +%s)
if [ $((now - first_try)) -gt "$WITHIN_S" ] || [ "$first_try" -gt "$now" ]; then
    tries=0
    first_try=$now
fi
tries=$((tries + 1))
reason=

if [ "$tries" -gt "$STARTS_MAX" ] && [ -n "$old" ] && [ -n "$program" ]; then
    rm -f "$program.back"
    if ln -s "$old" "$program.back" && mv -T "$program.back" "$program"; then
        outcome=back
        reason="llmgw $version was started $STARTS_MAX times within $((now - first_try)) s and never registered"
        echo "$reason: going back to $old" >&2
    else
        echo "llmgw $version does not come up, and $program cannot be pointed at $old again" >&2
    fi
fi

# A marker is never half written: a power cut leaves the old one.
umask 077
{
    while IFS= read -r line; do
        case $line in
            tries=* | first_try=* | outcome=* | reason=*) ;;
            *) printf '%s\n' "$line" ;;
        esac
    done <"$marker"
    printf 'tries=%s\nfirst_try=%s\noutcome=%s\nreason=%s\n' "$tries" "$first_try" "$outcome" "$reason"
} >"$marker.new" && mv -f "$marker.new" "$marker"
exit 0
