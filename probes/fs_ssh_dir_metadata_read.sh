#!/usr/bin/env bash
set -euo pipefail

# Lists ~/.ssh and counts the names; no file in it is opened and no name recorded.
probe_name="fs_ssh_dir_metadata_read"
primary_capability_id="cap_fs_read_home_keys"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

home="${HOME:-/HOME-is-not-set}"
target="$home/.ssh"
printf -v command ': <%q' "$target"
entries=null
shopt -s nullglob

status="error" errno="" message="" exit_code=0
stderr="$( { : <"$target"; } 2>&1 )" || exit_code=$?
if [[ $exit_code -eq 0 ]]; then
  set -- "$target"/* "$target"/.[!.]*
  entries=$#
  if [[ $entries -gt 0 ]]; then
    status="success" message="the folder was listed"
  else
    status="partial" message="the folder was opened, but it shows no name: empty, or masked"
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
  --payload-raw-field-json "entries" "$entries" \
  --operation-arg "read_mode" "list"
