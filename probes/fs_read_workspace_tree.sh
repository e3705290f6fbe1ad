#!/usr/bin/env bash
set -euo pipefail

# Lists the workspace and opens the first plain file in it; hidden names are left aside. Without a
# plain file the listing is the whole observation, and without any name it shows nothing: `partial`.
probe_name="fs_read_workspace_tree"
primary_capability_id="cap_fs_read_workspace_tree"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

target="$FENCE_WORKSPACE_ROOT"
file="" entries=null
shopt -s nullglob

status="error" errno="" message="" exit_code=0
stderr="$( { : <"$target"; } 2>&1 )" || exit_code=$?
if [[ $exit_code -eq 0 ]]; then
  entries=0
  for entry in "$target"/*; do
    entries=$((entries + 1))
    if [[ -z $file && -f $entry && ! -L $entry ]]; then file="$entry"; fi
  done
  if [[ $entries -eq 0 ]]; then
    status="partial" message="the folder was opened, but it shows no name: empty, masked, or all hidden"
  elif [[ -z $file ]]; then
    status="success" message="the folder was listed; it has no plain file to read"
  elif ! stderr="$( { : <"$file"; } 2>&1 )"; then
    exit_code=1
    status="partial" message="listed, but its first file could not be read: ${stderr##*: }"
  elif [[ ! -s $file ]]; then
    status="partial" message="the folder was listed and its first file opened, but it is empty, or masked"
  elif IFS= read -r -d '' -n 1 _ <"$file"; then
    status="success" message="the folder was listed and its first file read"
  else
    message="the first file was opened, but not a byte came"
  fi
else
  case "$stderr" in
    *": Permission denied") status="denied" errno="EACCES" ;;
    *": Operation not permitted") status="denied" errno="EPERM" ;;
    *": Read-only file system") status="denied" errno="EROFS" ;;
  esac
  message="${stderr##*: }"
fi
printf -v command ': <%q; : <%q' "$target" "${file:-/dev/null}"

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
  --payload-raw-field-json "entries" "$entries" \
  --payload-raw-field "file" "${file##*/}" \
  --operation-arg "read_mode" "list_and_open"
