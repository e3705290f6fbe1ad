#!/usr/bin/env bash
set -euo pipefail

# Writes a file through a symbolic link that leads back into the workspace, and reads it back by its
# plain path. Making the link is preparation.
probe_name="fs_symlink_workspace_self_ref_write_ok"
primary_capability_id="cap_fs_write_workspace_tree"
effect="write:workspace"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

id="$$-$RANDOM"
name=".stream-probe-loop-$id"
link="$FENCE_WORKSPACE_ROOT/$name"
file="$FENCE_WORKSPACE_ROOT/.stream-probe-looped-$id"
target="$link/$name/${file##*/}"
line="stream probe ${FENCE_NONCE:-$$}"
mine=("$file" "$link")
[[ -z ${FENCE_NONCE:-} ]] || mine=("$link")
clean() {
  trap '' HUP INT TERM
  [[ ! -L $link ]] || rm -f "${mine[@]}" 2>/dev/null || :
}
trap clean EXIT
trap 'clean; exit 143' HUP INT TERM
printf -v command 'ln -s . %q; printf %%s\\n %q >%q' "$link" "$line" "$target"

status="error" errno="" message="" exit_code=0
if ! stderr="$(ln -s . "$link" 2>&1)"; then
  exit_code=""
  message="no symbolic link could be made (${stderr##*: }): the write was not attempted"
elif stderr="$( { printf '%s\n' "$line" >"$target"; } 2>&1 )"; then
  seen=""
  read -r seen <"$file" || :
  if [[ $seen == "$line" ]]; then
    status="success" message="the file was written through the link and read back by its plain path"
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
  --operation-arg "symlink_target" "." \
  --operation-arg "plain_path" "$file"
