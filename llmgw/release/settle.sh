#!/bin/sh
# Takes back a new program that does not come up. It needs a shell and coreutils only, so that it works when the new
# program does not.
#
#   sh settle.sh FOLDER             before each start of the agent: one that has been started several times without
#                                   getting as far as the server is taken back
#   sh settle.sh FOLDER ended UNIT  after each end, with systemd's EXIT_CODE and EXIT_STATUS in the environment: one
#                                   that ended with a status after which UNIT starts nothing again is taken back at
#                                   once, and UNIT started
#
# FOLDER/marker is written by the agent that switches (llmgw/agent/upgrade/marker.py): lines of key=value. It always
# exits 0: whatever is wrong here, the agent is started.
set -u

STARTS_MAX=3
# Longer than so many starts take of which each hangs until systemd kills it (llmgw-agent.service: TimeoutStartSec,
# TimeoutStopSec, RestartSec).
WITHIN_S=1200

folder=${1:?settle.sh needs the folder of the marker}
mode=${2:-start}
marker=$folder/marker
[ -r "$marker" ] || exit 0

outcome= tries= first_try= old= new= program= version= reason=
while IFS='=' read -r key value; do
    case $key in
        outcome) outcome=$value ;;
        tries) tries=$value ;;
        first_try) first_try=$value ;;
        old) old=$value ;;
        new) new=$value ;;
        program) program=$value ;;
        version) version=$value ;;
    esac
done <"$marker"
[ "$outcome" = trial ] && [ -n "$program" ] || exit 0
# Another program was put there since, by hand or by onboarding, or the switch never came to be: nothing is on trial.
[ "$(readlink "$program" 2>/dev/null)" = "$new/bin/llmgw" ] || exit 0

# Have the program be the one from before, because of $1.
take_back() {
    case $old in
        /*) there=$old ;;
        *) there=${program%/*}/$old ;;
    esac
    if [ -z "$old" ] || [ ! -x "$there" ]; then
        echo "$1; ${old:-the program from before} is not there to go back to: install this node again" >&2
        return 1
    fi
    rm -f "$program.back"
    if ln -s "$old" "$program.back" && mv -T "$program.back" "$program"; then
        outcome=back reason=$1
        echo "$1: going back to $old" >&2
    else
        echo "$1, and $program cannot be pointed at $old again" >&2
        return 1
    fi
}

# A marker is never half written: a power cut leaves the old one.
write_marker() {
    {
        while IFS= read -r line; do
            case $line in
                tries=* | first_try=* | outcome=* | reason=*) ;;
                *) printf '%s\n' "$line" || return 1 ;;
            esac
        done <"$marker"
        printf 'tries=%s\nfirst_try=%s\noutcome=%s\nreason=%s\n' "$tries" "$first_try" "$outcome" "$reason"
    } >"$marker.new" || return 1
    sync "$marker.new" 2>/dev/null || sync
    mv -f "$marker.new" "$marker"
}

umask 077
case $tries in '' | *[!0-9]* | 0?* | ??????*) tries=0 ;; esac
case $first_try in '' | *[!0-9]* | 0?* | ????????????*) first_try=0 ;; esac

if [ "$mode" = ended ]; then
    [ "${EXIT_CODE:-}" = exited ] || exit 0
    case ${EXIT_STATUS:-} in
        2 | 78) ;; # RestartPreventExitStatus= of the unit
        *) exit 0 ;;
    esac
    take_back "llmgw $version ended with $EXIT_STATUS, as with a wrong command line or configuration" || exit 0
    write_marker
    # Not `start`: that would join the start that is under way, and end in failure with it.
    systemctl --no-block restart "${3:-llmgw-agent.service}"
    exit 0
fi

now=$(date +%s)
if [ $((now - first_try)) -gt "$WITHIN_S" ] || [ "$first_try" -gt "$now" ]; then
    tries=0
    first_try=$now
fi
tries=$((tries + 1))
if [ "$tries" -gt "$STARTS_MAX" ]; then
    take_back "llmgw $version was started $STARTS_MAX times within $((now - first_try)) s and never stayed"
fi
if ! write_marker && [ "$outcome" = trial ]; then
    # A start that is not counted would be tried for ever.
    take_back "the starts of llmgw $version cannot be counted, since $marker cannot be written"
fi
exit 0
