# The node's identity: certificate and key (where new ones came), the authority's root, the key of releases; and
# the root trusted by the whole system, in the way of the distribution.
. "$1/lib.sh"
one_at_a_time
# Whoever owns the folder can exchange what root's agent reads in it.
mkdir -p "$etc" && chmod 755 "$etc" && { [ "$me" != 0 ] || chown 0 "$etc"; } || die "$etc cannot be made"

put "$1/ca.pem" "$etc/ca.pem" 644
if [ -f "$1/agent.pem" ]; then
  # Two files, so there is a gap: the new key waits beside the old one, where the agent looks for it.
  changed "$etc/agent.pem"
  [ ! -d "$etc/agent-key.pem" ] || [ -L "$etc/agent-key.pem" ] ||
    die "$etc/agent-key.pem is a folder, and a file belongs there: move it away"
  fill "$1/agent-key.pem" "$etc/agent-key.pem.next" 600
  fill "$1/agent.pem" "$etc/agent.pem" 644
  mv -fT "$etc/agent-key.pem.next" "$etc/agent-key.pem" || die "$etc/agent-key.pem was not written"
else
  [ "$(stat -Lc '%a %u' "$etc/agent-key.pem")" = "600 $me" ] || {
    changed "$etc/agent-key.pem"
    chmod 600 "$etc/agent-key.pem" && { [ "$me" != 0 ] || chown 0:0 "$etc/agent-key.pem"; } ||
      die "others may read $etc/agent-key.pem, and that could not be changed"
  }
fi
if [ -f "$1/release.pub" ]; then
  put "$1/release.pub" "$etc/release.pub" 644
fi

# trust FOLDER FILE PROGRAM...: the root in FOLDER/FILE, and PROGRAM run when that is new.
trust() {
  target=$R$1/$2
  shift 2
  if same "$ca" "$target" 644; then
    echo "same $target"
    return
  fi
  fill "$ca" "$target" 644
  if "$@" >/dev/null 2>"$here/trust.err"; then
    echo "changed $target"
  else
    rm -f "$target"
    echo "note $1 failed ($(tail -n 1 "$here/trust.err")): the system does not trust the authority; llmgw itself does"
  fi
}
here=$1
ca=$1/ca.pem
if [ -d "$R/etc/pki/ca-trust/source/anchors" ] && command -v update-ca-trust >/dev/null 2>&1; then
  trust /etc/pki/ca-trust/source/anchors llmgw-ca.pem update-ca-trust extract
elif [ -d "$R/etc/pki/trust/anchors" ] && command -v update-ca-certificates >/dev/null 2>&1; then
  trust /etc/pki/trust/anchors llmgw-ca.pem update-ca-certificates
elif [ -d "$R/etc/ca-certificates/trust-source/anchors" ] && command -v trust >/dev/null 2>&1; then
  trust /etc/ca-certificates/trust-source/anchors llmgw-ca.crt update-ca-trust
elif command -v update-ca-certificates >/dev/null 2>&1; then
  trust /usr/local/share/ca-certificates llmgw-ca.crt update-ca-certificates
else
  echo "note this system has no store of authorities that is known here (ca-certificates is not installed); llmgw" \
    "itself needs none"
fi
exit 0
