#!/usr/bin/env bash
set -euo pipefail

# Opens the first disk of the system for reading. Nothing of what is on it is recorded.
probe_name="fs_block_device_read"
primary_capability_id="cap_fs_device_nodes"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

target="/dev/vda"
for device in /dev/vda /dev/sda /dev/nvme0n1 /dev/xvda /dev/mmcblk0 /dev/dm-0 /dev/disk0; do
  if [[ -b $device ]]; then target="$device"; break; fi
done
printf -v command ': <%q' "$target"

status="error" errno="" message="" exit_code=0
stderr="$( { : <"$target"; } 2>&1 )" || exit_code=$?
if [[ $exit_code -eq 0 ]]; then
  if IFS= read -r -d '' -n 1 _ <"$target"; then
    status="success" message="the disk was opened and a byte read"
  else
    message="it was opened, but not a byte came"
  fi
else
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
  --operation-arg "read_mode" "open"
