#!/usr/bin/env bash
set -euo pipefail

# Reads /etc/hosts through a symbolic link in the workspace. Making the link is preparation.
probe_name="fs_symlink_escape_read"
primary_capability_id="cap_fs_follow_symlinks_out_of_workspace"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

target="$FENCE_WORKSPACE_ROOT/.stream-probe-link-$$-$RANDOM"
leads_to="/etc/hosts"
clean() {
  trap '' HUP INT TERM
  [[ ! -L $target ]] || rm -f "$target" 2>/dev/null || :
}
trap clean EXIT
trap 'clean; exit 143' HUP INT TERM
printf -v command 'ln -s %q %q; : <%q' "$leads_to" "$target" "$target"

# A workspace that holds /etc too leaves nothing of it outside.
inside="" folder="/etc"
while :; do
  if [[ ${folder:-/} -ef $FENCE_WORKSPACE_ROOT ]]; then inside="yes"; fi
  [[ -n $folder ]] || break
  folder="${folder%/*}"
done

status="error" errno="" message="" exit_code=0
stderr=""
if [[ -n $inside ]]; then
  exit_code="" message="not attempted: /etc is part of the workspace"
elif ! stderr="$(ln -s "$leads_to" "$target" 2>&1)"; then
  exit_code=""
  message="no symbolic link could be made (${stderr##*: }): the read was not attempted"
elif stderr="$( { : <"$target"; } 2>&1 )"; then
  if [[ ! $target -ef /etc/hosts ]]; then
    message="the link leads to something else than /etc/hosts"
  elif IFS= read -r -d '' -n 1 _ <"$target"; then
    status="success" message="the file outside the workspace was read through the link"
  else
    message="it was opened, but not a byte came"
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
  --category "fs" \
  --verb "read" \
  --target "$target" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stderr "$stderr" \
  --operation-arg "read_mode" "open" \
  --operation-arg "symlink_target" "$leads_to"
