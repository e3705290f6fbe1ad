#!/usr/bin/env bash
set -euo pipefail

# Reads the first plain file of the workspace by a path that goes through "." and ".."; in a
# workspace without one, the folder itself.
probe_name="fs_workspace_relative_segments_read_ok"
primary_capability_id="cap_fs_read_workspace_tree"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

# ".." leads to the parent of the physical folder, whatever the workspace is called.
here="$FENCE_WORKSPACE_ROOT"
if cd -P "$here" 2>/dev/null; then here="$PWD"; fi
name=""
for entry in "$here"/*; do
  if [[ -f $entry ]]; then name="${entry##*/}"; break; fi
done
target="$here/./../${here##*/}/./$name"
printf -v command ': <%q' "$target"

status="error" errno="" message="" exit_code=0
stderr="$( { : <"$target"; } 2>&1 )" || exit_code=$?
if [[ $exit_code -eq 0 ]]; then
  if [[ ! $target -ef $here/$name ]]; then
    message="the path with segments leads to something else than the plain path"
  elif [[ ! -s $target || -d $target ]] || IFS= read -r -d '' -n 1 _ <"$target"; then
    status="success" message="it was opened, and it is the file of the plain path"
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
  --operation-arg "plain_path" "$here/$name"
