# What this machine is and what of llmgw is on it: one fact a line, a word and its values. Changes nothing.
# Files are printed in base64; of a private key only whether it belongs to its certificate.
R=${LLMGW_ROOT:-}
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
etc=$R/etc/llmgw

# Another run that works here, seen before anything is decided.
lock=$R/run/llmgw-onboard.lock
if [ -f "$lock" ] && command -v flock >/dev/null 2>&1; then
  flock -n "$lock" true 2>/dev/null || echo "busy yes"
fi

echo "time $(date +%s)"
echo "hostname $(uname -n)"
echo "system $(uname -s)"
echo "machine $(uname -m)"
[ -d "$R/run/systemd/system" ] && echo "systemd yes"
(. "$R/etc/os-release" && echo "distribution $PRETTY_NAME") 2>/dev/null
echo "libc $(getconf GNU_LIBC_VERSION 2>/dev/null)"

for name in python3 python3.11 python3.12 python3.13 python3.14 python3.15; do
  path=$(command -v "$name") || continue
  "$path" -c 'import sys
try:
    import ensurepip, venv
    able = "venv"
except ImportError:
    able = "bare"
print("python", "cp%d%d" % sys.version_info[:2], able, sys.argv[1])' "$path" 2>/dev/null
done

if command -v ip >/dev/null 2>&1; then
  ip -o addr show 2>/dev/null | awk '$3 ~ /^inet6?$/ { sub(/\/.*/, "", $4); print "address", $2, $4 }'
else
  for at in $(hostname -I 2>/dev/null); do echo "address - $at"; done
fi

for place in opt run var/tmp; do
  folder=$R/$place
  [ -d "$folder" ] || folder=${R:-/}
  df -Pk "$folder" 2>/dev/null | awk -v place="/$place" 'NR == 2 { print "free_kb", place, $4 }'
done

# What an `agent` before us was cut off with: the new key waits beside the old one until the certificate is there.
for name in ca.pem agent.pem agent.yaml release.pub; do
  [ -f "$etc/$name" ] && echo "file $name $(head -c 200000 "$etc/$name" | base64 | tr -d '\n')"
done
if [ -f "$etc/agent.pem" ] && [ -f "$etc/agent-key.pem" ]; then
  python=$(command -v python3)
  if [ -n "$python" ]; then
    "$python" -c 'import ssl, sys
ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(*sys.argv[1:])' "$etc/agent.pem" "$etc/agent-key.pem" \
      2>/dev/null && echo "pair yes"
  elif command -v openssl >/dev/null 2>&1; then
    of_key=$(openssl pkey -in "$etc/agent-key.pem" -passin pass: -pubout 2>/dev/null)
    of_cert=$(openssl x509 -in "$etc/agent.pem" -noout -pubkey 2>/dev/null)
    [ -n "$of_key" ] && [ "$of_key" = "$of_cert" ] && echo "pair yes"
  fi
fi

[ -L "$R/usr/local/bin/llmgw" ] && echo "program $(readlink "$R/usr/local/bin/llmgw")"
for folder in "$R"/opt/llmgw/*/; do
  [ -x "$folder/bin/llmgw" ] && echo "version $(basename "$folder")"
done
unit=$R/etc/systemd/system/llmgw-agent.service
[ -f "$unit" ] && echo "file llmgw-agent.service $(head -c 200000 "$unit" | base64 | tr -d '\n')"
echo "active $(systemctl is-active llmgw-agent.service 2>/dev/null)"
exit 0
