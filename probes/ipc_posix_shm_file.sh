#!/usr/bin/env bash
set -euo pipefail

# Creates a file in /dev/shm, where POSIX shared memory lives on Linux, reads it back and removes it.
probe_name="ipc_posix_shm_file"
primary_capability_id="cap_ipc_shared_memory"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

target="/dev/shm/stream-probe-$$-$RANDOM"
line="stream probe $$"
clean() {
  trap '' HUP INT TERM
  [[ ! -e $target ]] || rm -f "$target" 2>/dev/null || :
}
trap clean EXIT
trap 'clean; exit 143' HUP INT TERM
printf -v command 'set -C; printf %%s %q >%q' "$line" "$target"

status="error" errno="" message="" exit_code=0
# set -C: a new file, never one that somebody laid there
stderr="$( { set -C; printf '%s\n' "$line" >"$target"; } 2>&1 )" || exit_code=$?
if [[ $exit_code -eq 0 ]]; then
  seen=""
  read -r seen <"$target" || :
  if [[ $seen == "$line" ]]; then
    status="success" message="the line was written and read back"
  else
    message="the write reported success but the line is not in the file"
  fi
else
  message="${stderr##*: }"
  case "$message" in
    "Permission denied") status="denied" errno="EACCES" ;;
    "Operation not permitted") status="denied" errno="EPERM" ;;
    "Read-only file system") status="denied" errno="EROFS" ;;
    "No such file or directory") errno="ENOENT" ;;
    "No space left on device") errno="ENOSPC" ;;
  esac
fi

"$emit_record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "1" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "ipc" \
  --verb "create" \
  --target "$target" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  --raw-exit-code "$exit_code" \
  --payload-stderr "$stderr" \
  --operation-arg "write_mode" "create"
