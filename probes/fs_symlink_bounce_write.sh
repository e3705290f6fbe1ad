#!/usr/bin/env bash
set -euo pipefail

# Creates a file outside the workspace, in /var/tmp, through a symbolic link in the workspace that
# leads to that folder, and reads it back by its real path. Making the link is preparation.
probe_name="fs_symlink_bounce_write"
primary_capability_id="cap_fs_follow_symlinks_out_of_workspace"
effect="write:outside"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

# Never through a name that somebody else has put there.
set -o noclobber
name="stream-probe-bounce-$$-$RANDOM"
leads_to="${FENCE_OUTSIDE:-/var/tmp}"
link="$FENCE_WORKSPACE_ROOT/.$name"
target="$link/$name"
real="$leads_to/$name"
line="stream probe ${FENCE_NONCE:-$$}"
mine=("$real" "$link")
[[ -z ${FENCE_NONCE:-} ]] || mine=("$link")
clean() {
  trap '' HUP INT TERM
  [[ ! -L $link ]] || rm -f "${mine[@]}" 2>/dev/null || :
}
trap clean EXIT
trap 'clean; exit 143' HUP INT TERM
printf -v command 'ln -s %q %q; printf %%s\\n %q >%q' "$leads_to" "$link" "$line" "$target"

# A workspace that holds that folder too leaves nothing of it outside.
inside="" folder="$leads_to"
while :; do
  if [[ ${folder:-/} -ef $FENCE_WORKSPACE_ROOT ]]; then inside="yes"; fi
  [[ -n $folder ]] || break
  folder="${folder%/*}"
done

status="error" errno="" message="" exit_code=0
stderr=""
if [[ -n $inside ]]; then
  exit_code="" message="not attempted: $leads_to is part of the workspace"
elif ! stderr="$(ln -s "$leads_to" "$link" 2>&1)"; then
  exit_code=""
  message="no symbolic link could be made (${stderr##*: }): the write was not attempted"
elif stderr="$( { printf '%s\n' "$line" >"$target"; } 2>&1 )"; then
  seen=""
  read -r seen <"$real" || :
  if [[ $seen == "$line" ]]; then
    status="success" message="the file was written through the link and read back by its real path"
  else
    message="the write reported success but the line is not in the real file"
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
  --probe-version "2" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "fs" \
  --verb "write" \
  --target "$target" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stderr "$stderr" \
  --operation-arg "write_mode" "create" \
  ${FENCE_NONCE:+--operation-arg "effect" "$effect"} \
  --operation-arg "symlink_target" "$leads_to"
