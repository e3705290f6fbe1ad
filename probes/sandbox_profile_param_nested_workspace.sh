#!/usr/bin/env bash
set -euo pipefail

# Writes a file in a new folder of the workspace and reads it back: a profile that is given the
# workspace as a parameter has to hold for what appears below it later. Making the folder is
# preparation. A write that nothing hinders looks the same without any profile: `partial`.
probe_name="sandbox_profile_param_nested_workspace"
primary_capability_id="cap_sandbox_profile_parameterization"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

folder="$FENCE_WORKSPACE_ROOT/.stream-probe-nested-$$-$RANDOM"
target="$folder/file"
line="stream probe $$"
clean() {
  trap '' HUP INT TERM
  [[ ! -d $folder ]] || rm -rf "$folder" 2>/dev/null || :
}
trap clean EXIT
trap 'clean; exit 143' HUP INT TERM
printf -v command 'mkdir %q; printf %%s\\n %q >%q' "$folder" "$line" "$target"

status="error" errno="" message="" exit_code=0
if ! stderr="$(mkdir "$folder" 2>&1)"; then
  exit_code=""
  message="no folder could be made (${stderr##*: }): the write was not attempted"
elif stderr="$( { printf '%s\n' "$line" >"$target"; } 2>&1 )"; then
  seen=""
  read -r seen <"$target" || :
  if [[ $seen == "$line" ]]; then
    status="partial" message="the file was written and read back; a profile, or its parameters, do not show in that"
  else
    message="the write reported success but the line is not in the file"
  fi
else
  exit_code=$?
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
  --category "sandbox_meta" \
  --verb "write" \
  --target "$target" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stderr "$stderr" \
  --operation-arg "write_mode" "create"
