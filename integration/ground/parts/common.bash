# Printing, timing and failing.

fail() {
  echo "ground: error: $*" >&2
  exit 1
}

# step NAME COMMAND…: runs it, prints one line with what it says on descriptor 3 and the seconds it took.
# What it prints on stdout and stderr goes to up.log, whose end is shown when it fails.
step() {
  local name=$1 began=$EPOCHREALTIME note status=0
  shift
  : >"$ground/note"
  printf '== %s\n' "$name" >>"$ground/up.log"
  # Not in a condition: `set -e` must hold inside. The lock (9) is not for what it starts.
  set +e
  (
    set -e
    "$@"
  ) >>"$ground/up.log" 2>&1 3>"$ground/note" 9>&- </dev/null
  status=$?
  set -e
  note=$(cat "$ground/note")
  if [ "$status" != 0 ]; then
    tail -n 30 "$ground/up.log" >&2
    fail "$name: ${note:-exit code $status}; all of it is in $ground/up.log"
  fi
  awk -v name="$name" -v note="$note" -v began="$began" -v ended="$EPOCHREALTIME" \
    'BEGIN { printf "ground: %-20s %6.1f s  %s\n", name, ended - began, note }'
}

# note TEXT: what the line of the current step says.
note() {
  printf '%s' "$*" >&3
}
