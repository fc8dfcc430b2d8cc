# The program: checked and unpacked by install.sh of the release, then switched to. Files: install.sh, and the
# release under its own name; `wanted` holds name and SHA-256.
. "$1/lib.sh"
one_at_a_time
read -r name sha256 <"$1/wanted" || die "nothing says what to install"
before=$(readlink "$R/usr/local/bin/llmgw" 2>/dev/null)
sh "$1/install.sh" "$1/$name" "$name" "$sha256" ${R:+"$R"} >"$1/install.out" || exit 1
if [ "$(readlink "$R/usr/local/bin/llmgw")" = "$before" ]; then
  echo "same $(tail -n 1 "$1/install.out")"
else
  changed "$(tail -n 1 "$1/install.out")"
fi
