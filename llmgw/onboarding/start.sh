# The agent runs, and with everything that was put in place. Its engines are not touched: the unit ends it alone.
# Nobody waits for it here: that is the control plane's word, and the unit's state says when it failed.
. "$1/lib.sh"
one_at_a_time
was=$(systemctl is-active llmgw-agent.service 2>/dev/null)

if [ -f "$due" ] || [ "$was" != active ]; then
  systemctl daemon-reload
  systemctl reset-failed llmgw-agent.service 2>/dev/null
  systemctl --no-block restart llmgw-agent.service 9>&- 2>"$1/start.err" || die "$(cat "$1/start.err")"
  rm -f "$due"
  if [ "$was" = active ]; then echo "changed restarted"; else echo "changed started"; fi
else
  echo "same running"
fi
