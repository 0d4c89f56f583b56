# qemu handlers in binfmt_misc, for the whole machine.
#
# A handler needs two flags. F: the kernel opens qemu when the handler is registered, so it works in a root that has
# no qemu. P: the program sees the argv[0] it was called with; without it busybox does not know which applet it is.
#
# Nothing that is registered already is changed or removed. Where the present handler lacks P or F, one more is added
# beside it: of several that match, the kernel takes the one registered last, so ours is used from then on.

binfmt=/proc/sys/fs/binfmt_misc

# The CPUs that this machine does not run by itself, in qemu's words.
foreign_cpus() {
  case $(uname -m) in
    x86_64) echo arm aarch64 ppc64le s390x ;;
    aarch64) echo arm x86_64 i386 ppc64le s390x ;;
    *) echo arm aarch64 x86_64 i386 ppc64le s390x ;;
  esac
}

# handler_works CPU: whether an enabled handler for that CPU has both flags.
handler_works() {
  local entry
  for entry in "$binfmt/qemu-$1" "$binfmt/qemu-$1-builder"; do
    [ -e "$entry" ] || continue
    if grep -qx enabled "$entry" && grep -q '^flags: .*P' "$entry" && grep -q '^flags: .*F' "$entry"; then
      return 0
    fi
  done
  return 1
}

register_handlers() {
  local cpu line name added=() present=()
  if [ ! -e "$binfmt/register" ]; then
    mount -t binfmt_misc binfmt_misc "$binfmt" ||
      { note "cannot mount binfmt_misc (needs root on the machine, not in a container)"; return 1; }
  fi
  if [ "$(cat "$binfmt/status")" != enabled ]; then
    note "binfmt_misc is switched off; switch it on with: echo 1 > $binfmt/status"
    return 1
  fi
  for cpu in $(foreign_cpus); do
    if handler_works "$cpu"; then
      present+=("$cpu")
      continue
    fi
    # Debian's qemu-user-static comes with the line to register: name, magic, mask, interpreter and flags OPF.
    line=$(grep -h "^:qemu-$cpu:" "/usr/lib/binfmt.d/qemu-$cpu.conf")
    name=qemu-$cpu
    if [ -e "$binfmt/$name" ]; then
      echo "$name lacks P or F, or is disabled; adding $name-builder before it:"
      cat "$binfmt/$name"
      name=$name-builder
      line=:$name:${line#:*:}
    fi
    # The kernel reads the escapes itself; one write makes one handler.
    printf '%s' "$line" >"$binfmt/register" || handler_works "$cpu"
    added+=("$name")
  done
  note "present: ${present[*]:-none}; added: ${added[*]:-none}"
}
