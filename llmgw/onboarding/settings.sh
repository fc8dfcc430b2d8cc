# Configuration and unit. A configuration that the program here does not take never replaces one that it took.
. "$1/lib.sh"
one_at_a_time
program=$R/usr/local/bin/llmgw

if [ -f "$1/agent.yaml" ] && ! same "$1/agent.yaml" "$etc/agent.yaml" 644; then
  if ! "$program" agent --check --config "$1/agent.yaml" >"$1/check.out" 2>&1; then
    sed "s|$1/agent.yaml|agent.yaml|g" "$1/check.out" >&2
    exit 1
  fi
  if [ -f "$1/keep-old" ] && [ -f "$etc/agent.yaml" ]; then
    fill "$etc/agent.yaml" "$etc/agent.yaml.before" 644
    echo "note the file that was there is now $etc/agent.yaml.before"
  fi
fi
[ -f "$1/agent.yaml" ] && put "$1/agent.yaml" "$etc/agent.yaml" 644

put "$1/llmgw-agent.service" "$units/llmgw-agent.service" 644
if [ "$(systemctl is-enabled llmgw-agent.service 2>/dev/null)" != enabled ]; then
  systemctl daemon-reload && systemctl enable llmgw-agent.service >/dev/null 2>"$1/enable.err" ||
    die "the unit llmgw-agent.service cannot be enabled: $(tail -n 1 "$1/enable.err" 2>/dev/null)"
  echo "changed enabled"
fi
exit 0
