#!/usr/bin/env bash
set -euo pipefail

# Creates a file in /etc, where only root may, and reads it back.
probe_name="fs_system_roots_write_guard"
primary_capability_id="cap_fs_write_system_roots"
effect="write:system"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

target="/etc/stream-probe-etc-$$-$RANDOM"
line="stream probe ${FENCE_NONCE:-$$}"
clean() {
  trap '' HUP INT TERM
  [[ -n ${FENCE_NONCE:-} || ! -e $target ]] || rm -f "$target" 2>/dev/null || :
}
trap clean EXIT
trap 'clean; exit 143' HUP INT TERM
printf -v command 'printf %%s\\n %q >%q' "$line" "$target"

status="error" errno="" message="" exit_code=0
stderr="$( { printf '%s\n' "$line" >"$target"; } 2>&1 )" || exit_code=$?
if [[ $exit_code -eq 0 ]]; then
  seen=""
  read -r seen <"$target" || :
  if [[ $seen == "$line" ]]; then
    status="success" message="the file was written and read back"
  else
    message="the write reported success but the line is not in the file"
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
  --probe-version "2" \
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
  --operation-arg "write_mode" "create" \
  ${FENCE_NONCE:+--operation-arg "effect" "$effect"}
