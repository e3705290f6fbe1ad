#!/usr/bin/env bash
set -euo pipefail

# Opens the environment of another process: the highest parent that runs as the same user, or the
# first process where there is none. Nothing of what is in it is recorded.
probe_name="fs_proc_other_environ_read"
primary_capability_id="cap_fs_proc_other_processes"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

other=1 pid=$$ stat=""
# A name may hold anything: the numbers follow the last bracket.
while { read -r stat <"/proc/$pid/stat"; } 2>/dev/null; do
  stat="${stat##*) ? }" pid="${stat%% *}"
  if [[ $pid -le 1 ]]; then break; fi
  if [[ -O /proc/$pid/environ ]]; then other="$pid"; fi
done
target="/proc/$other/environ"
name=""
{ read -r name <"/proc/$other/comm"; } 2>/dev/null || :
printf -v command ': <%q' "$target"

status="error" errno="" message="" exit_code=0
stderr=""
if [[ $other -eq $$ ]]; then
  exit_code=1
  message="this shell is the first process here: no other to read, nothing was attempted"
elif stderr="$( { : <"$target"; } 2>&1 )"; then
  if IFS= read -r -d '' -n 1 _ <"$target"; then
    status="success" message="the environment of another process was opened and a byte read"
  else
    message="it was opened, but not a byte came"
  fi
else
  exit_code=$?
  case "$stderr" in
    *": Permission denied") status="denied" errno="EACCES" ;;
    *": Operation not permitted") status="denied" errno="EPERM" ;;
    *": Read-only file system") status="denied" errno="EROFS" ;;
  esac
  message="${stderr##*: }"
fi

"$emit_record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "1" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "fs" \
  --verb "read" \
  --target "$target" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  --raw-exit-code "$exit_code" \
  --payload-stderr "$stderr" \
  --payload-raw-field "process" "$name" \
  --operation-arg "read_mode" "open"
