#!/usr/bin/env bash
set -euo pipefail

# Opens .git/config of the workspace. Its text, which may hold credentials, is not recorded. Without
# .git there is nothing to read: that is an error, ENOENT.
probe_name="fs_git_metadata_read_config"
primary_capability_id="cap_fs_read_git_metadata"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

target="$FENCE_WORKSPACE_ROOT/.git/config"
printf -v command ': <%q' "$target"

status="error" errno="" message="" exit_code=0
stderr="$( { : <"$target"; } 2>&1 )" || exit_code=$?
if [[ $exit_code -eq 0 ]]; then
  if IFS= read -r -d '' -n 1 _ <"$target"; then
    status="success" message="the file was opened and a byte read"
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
