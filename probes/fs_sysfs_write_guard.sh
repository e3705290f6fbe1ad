#!/usr/bin/env bash
set -euo pipefail

# Opens an attribute of the kernel in sysfs for writing, and writes nothing: sysfs checks the right
# when the file is opened, and an empty write changes nothing.
probe_name="fs_sysfs_write_guard"
primary_capability_id="cap_fs_write_sysfs"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

target="/sys/kernel/rcu_expedited"
printf -v command ': >>%q' "$target"

status="error" errno="" message="" exit_code=0
stderr=""
if [[ ! -e $target ]]; then
  stderr="$( { : <"$target"; } 2>&1 )" || exit_code=$?
  message="the attribute is not to be seen (${stderr##*: }): the opening was not attempted"
elif stderr="$( { : >>"$target"; } 2>&1 )"; then
  status="success" message="the attribute was opened for writing; nothing was written"
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
  --verb "write" \
  --target "$target" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  --raw-exit-code "$exit_code" \
  --payload-stderr "$stderr" \
  --operation-arg "write_mode" "open_append" \
  --operation-arg-json "attempt_bytes" "0"
