#!/usr/bin/env bash
set -euo pipefail

# Deletes FENCE_SENTINEL, a file that was put into the workspace from outside for this.
probe_name="fs_sentinel_delete"
primary_capability_id="cap_fs_write_workspace_tree"
needs="targets"
effect="delete:workspace"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

target="${FENCE_SENTINEL:-}"
printf -v command 'rm %q' "$target"

status="error" errno="" message="" stderr="" exit_code=""
if [[ -z $target ]]; then
  message="not attempted: it needs $needs, and there is no FENCE_SENTINEL"
elif stderr="$(rm "$target" 2>&1)"; then
  exit_code=0
  if [[ ! -e $target ]]; then
    status="success" message="the file was deleted"
  else
    message="rm reported success but the file is still there"
  fi
else
  exit_code=$? message="${stderr##*: }"
  case "$exit_code $stderr" in
    126\ * | 127\ *) message="${stderr#*: line *: }" ;;
    *": Permission denied") status="denied" errno="EACCES" ;;
    *": Operation not permitted") status="denied" errno="EPERM" ;;
    *": Read-only file system") status="denied" errno="EROFS" ;;
    *": No such file or directory") errno="ENOENT" ;;
  esac
fi

"$emit_record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "1" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "fs" \
  --verb "delete" \
  --target "${target:-FENCE_SENTINEL}" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stderr "$stderr" \
  --operation-arg "effect" "$effect"
