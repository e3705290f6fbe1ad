#!/usr/bin/env bash
set -euo pipefail

# Creates a file in $TMPDIR and reads it back. The harness looked for a place where it can write and
# made the folder itself, so this says nothing of those that users share: `partial`.
probe_name="fs_tmpdir_write"
primary_capability_id="cap_fs_write_temp"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

target="$TMPDIR/stream-probe-tmpdir-$$-$RANDOM"
line="stream probe $$"
trap '[[ ! -e $target ]] || rm -f "$target" 2>/dev/null || :' EXIT
printf -v command 'printf %%s\\n %q >%q' "$line" "$target"

status="error" errno="" message="" exit_code=0
stderr="$( { printf '%s\n' "$line" >"$target"; } 2>&1 )" || exit_code=$?
if [[ $exit_code -eq 0 ]]; then
  seen=""
  read -r seen <"$target" || :
  if [[ $seen == "$line" ]]; then
    status="partial" message="the file was written and read back, in a folder that the harness chose because it can be"
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
  --probe-version "1" \
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
  --operation-arg "folder" "TMPDIR, the harness's own"
