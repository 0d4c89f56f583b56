# A real registry (Debian's docker-registry) on a free port of the loopback interface.

# registry_pid: the process, if it still is the registry of this ground.
registry_pid() {
  local pid
  pid=$(cat "$ground/registry.pid" 2>/dev/null) || return 1
  [ -n "$pid" ] || return 1
  tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -qF "serve $ground/registry.yml" || return 1
  echo "$pid"
}

registry_answers() {
  local address status
  address=$(cat "$ground/registry" 2>/dev/null) || return 1
  exec 4<>"/dev/tcp/${address%:*}/${address##*:}" || return 1
  printf 'GET /v2/ HTTP/1.0\r\nHost: %s\r\n\r\n' "$address" >&4
  read -r -t 5 status <&4 || status=
  exec 4>&-
  case $status in
    *" 200 "*) return 0 ;;
    *) return 1 ;;
  esac
}

start_registry() {
  local port
  if registry_pid >/dev/null && registry_answers; then
    note "$(cat "$ground/registry"), already up"
    return
  fi
  stop_registry
  # The port of last time if it is free, so that names in a shell's history stay right; else any free one.
  port=$(sed -n 's/.*://p' "$ground/registry" 2>/dev/null || true)
  run_registry "${port:-0}" || run_registry 0
  note "$(cat "$ground/registry")"
}

# run_registry PORT: 0 lets the kernel choose; the registry then logs what it got.
run_registry() {
  local begin pid address tries
  cat >"$ground/registry.yml" <<END
version: 0.1
log:
  level: info
  formatter: text
  accesslog:
    disabled: false
storage:
  filesystem:
    rootdirectory: $ground/registry-data
  delete:
    enabled: true
  maintenance:
    uploadpurging:
      enabled: false
http:
  addr: 127.0.0.1:$1
END
  mkdir -p "$ground/registry-data"
  touch "$ground/registry.log"
  begin=$(($(wc -c <"$ground/registry.log") + 1))
  setsid docker-registry serve "$ground/registry.yml" </dev/null >>"$ground/registry.log" 2>&1 3>&- 9>&- &
  pid=$!
  disown "$pid"
  echo "$pid" >"$ground/registry.pid"
  for ((tries = 0; tries < 200; tries++)); do
    address=$(tail -c "+$begin" "$ground/registry.log" |
      sed -n 's/.*listening on \(127\.0\.0\.1:[0-9]*\).*/\1/p' | head -n 1)
    if [ -n "$address" ]; then
      echo "$address" >"$ground/registry"
      registry_answers && return 0
    fi
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.05
  done
  tail -c "+$begin" "$ground/registry.log"
  kill "$pid" 2>/dev/null || true
  return 1
}

stop_registry() {
  local pid tries
  pid=$(registry_pid) || return 0
  kill "$pid"
  for ((tries = 0; tries < 200; tries++)); do
    kill -0 "$pid" 2>/dev/null || return 0
    sleep 0.05
  done
  kill -9 "$pid"
}
