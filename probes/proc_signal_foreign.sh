#!/usr/bin/env bash
set -euo pipefail

# Asks whether pid 1, a process that the probe did not start, may be signalled. Signal 0 only checks
# the permission; nothing is delivered.
probe_name="proc_signal_foreign"
primary_capability_id="cap_proc_signal_foreign"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

command="kill -0 1"
same_user="null"
[[ ! -e /proc/1 ]] || same_user="false"
[[ ! -O /proc/1 ]] || same_user="true"

status="error" errno="" message="" stderr="" exit_code=0
if [[ $$ -eq 1 ]]; then
  exit_code=1 message="not attempted: the probe is pid 1 itself"
elif stderr="$(kill -0 1 2>&1)"; then
  status="success" message="pid 1 may be signalled"
else
  exit_code=1 message="${stderr##* - }"
  case "$message" in
    "Permission denied") status="denied" errno="EACCES" ;;
    "Operation not permitted") status="denied" errno="EPERM" ;;
    "No such process") errno="ESRCH" message="pid 1 cannot be seen" ;;
    "Function not implemented") errno="ENOSYS" ;;
  esac
fi

"$emit_record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "1" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "proc" \
  --verb "signal" \
  --target "pid 1" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  --raw-exit-code "$exit_code" \
  --payload-stderr "$stderr" \
  --payload-raw-field-json "pid_1_has_same_user" "$same_user" \
  --operation-arg "signal" "0"
