#!/usr/bin/env bash
set -euo pipefail

# Deletes a file of its own in the workspace. Making that file is preparation: where it cannot be
# made, the deletion was not attempted.
probe_name="fs_workspace_delete_file"
primary_capability_id="cap_fs_write_workspace_tree"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

target="$FENCE_WORKSPACE_ROOT/.stream-probe-delete-$$-$RANDOM"
clean() {
  trap '' HUP INT TERM
  [[ ! -e $target ]] || rm -f "$target" 2>/dev/null || :
}
trap clean EXIT
trap 'clean; exit 143' HUP INT TERM
printf -v command 'rm %q' "$target"

status="error" errno="" message="" exit_code=0
if ! stderr="$( { : >"$target"; } 2>&1 )"; then
  exit_code=""
  message="no file could be made (${stderr##*: }): the deletion was not attempted"
elif stderr="$(rm "$target" 2>&1)"; then
  if [[ ! -e $target ]]; then
    status="success" message="the file was deleted"
  else
    message="rm reported success but the file is still there"
  fi
else
  exit_code=$?
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
  --verb "delete" \
  --target "$target" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stderr "$stderr" \
  --operation-arg "write_mode" "create_then_delete"
