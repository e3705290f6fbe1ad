#!/usr/bin/env bash
set -euo pipefail

# Reads /etc/hosts, a file of the system, by a path that begins in the workspace and climbs out of it
# with "..".
probe_name="fs_workspace_relative_escape_read_guard"
primary_capability_id="cap_fs_read_system_roots"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

# ".." leads to the parent of the physical folder, whatever the workspace is called.
here="$FENCE_WORKSPACE_ROOT"
if cd -P "$here" 2>/dev/null; then here="$PWD"; fi
up="" rest="$here"
while [[ $rest == /*[!/]* ]]; do
  up="../$up" rest="${rest%/*}"
done
target="$here/${up}etc/hosts"
printf -v command ': <%q' "$target"

status="error" errno="" message="" exit_code=0
stderr="$( { : <"$target"; } 2>&1 )" || exit_code=$?
if [[ $exit_code -eq 0 ]]; then
  if [[ ! $target -ef /etc/hosts ]]; then
    message="the path with segments leads to something else than /etc/hosts"
  elif IFS= read -r -d '' -n 1 _ <"$target"; then
    status="success" message="the file above the workspace was read"
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
  --operation-arg "read_mode" "open" \
  --operation-arg "plain_path" "/etc/hosts"
