# Two ordinary users to build as: one with subordinate ids (subuid(5)), one without.

# The range of the first, which nobody else is likely to have.
readonly subordinate=2000000-2065535

make_users() {
  local name made=()
  for name in ground-ranges ground-single; do
    id "$name" >/dev/null 2>&1 && continue
    # A system user gets no subordinate ids by itself.
    useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin "$name"
    made+=("$name")
  done
  for name in /etc/subuid /etc/subgid; do
    touch "$name"
    if ! grep -q '^ground-ranges:' "$name"; then
      usermod "--add-${name#/etc/}s" "$subordinate" ground-ranges
      made+=("$name")
    fi
  done
  note "${made[*]:-nothing missing}"
}
