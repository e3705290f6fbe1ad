#!/usr/bin/env bash
set -euo pipefail

# Makes a device node of its own in $TMPDIR, the null device, and uses it. A node that is made but
# cannot be used (a mount with nodev) is partial.
probe_name="fs_device_node_create"
primary_capability_id="cap_fs_device_nodes"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

target="$TMPDIR/stream-probe-null-$$-$RANDOM"
major=1 minor=3
if [[ $OSTYPE == darwin* ]]; then major=3 minor=2; fi
trap '[[ ! -e $target ]] || rm -f "$target" 2>/dev/null || :' EXIT
printf -v command 'mknod %q c %q %q' "$target" "$major" "$minor"

status="error" errno="" message="" exit_code=0
stderr="$(mknod "$target" c "$major" "$minor" 2>&1)" || exit_code=$?
if [[ $exit_code -eq 0 ]]; then
  if [[ ! -c $target ]]; then
    message="mknod reported success but there is no device node"
  elif stderr="$( { printf x >"$target"; } 2>&1 )"; then
    status="success" message="the node was made and took a byte"
  else
    status="partial" message="the node was made, but it could not be used: ${stderr##*: }"
  fi
else
  message="${stderr##*: }"
  case "$exit_code $stderr" in
    126\ * | 127\ *) message="${stderr#*: line *: }" ;;
    *": Permission denied") status="denied" errno="EACCES" ;;
    *": Operation not permitted") status="denied" errno="EPERM" ;;
    *": Read-only file system") status="denied" errno="EROFS" ;;
  esac
fi

"$emit_record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "1" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "fs" \
  --verb "mknod" \
  --target "$target" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  --raw-exit-code "$exit_code" \
  --payload-stderr "$stderr" \
  --operation-arg "device" "c $major $minor"
