# The agent's last words.
journalctl --unit llmgw-agent.service --lines 40 --no-pager --output short-iso 2>/dev/null ||
  systemctl status --no-pager --lines 40 llmgw-agent.service
exit 0
