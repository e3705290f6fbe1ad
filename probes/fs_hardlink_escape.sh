#!/usr/bin/env bash
set -euo pipefail

# Makes a hard link in the workspace to a file outside it: one of its own in /var/tmp or, where that
# cannot be written, in $TMPDIR. EXDEV is an error: another mount, or Landlock without the right to
# move files between folders.
probe_name="fs_hardlink_escape"
primary_capability_id="cap_fs_hardlink_out_of_workspace"
effect="write:workspace"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

name="stream-probe-hardlink-$$-$RANDOM"
target="$FENCE_WORKSPACE_ROOT/.$name"
outside="${FENCE_OUTSIDE:-/var/tmp}"
source="$outside/$name"
line="stream probe ${FENCE_NONCE:-$$}"
# Never through a name that somebody else has put there.
set -o noclobber
clean() {
  trap '' HUP INT TERM
  mine=("$target" "$source")
  [[ -z ${FENCE_NONCE:-} ]] || mine=("$source")
  [[ ! -e $source ]] || rm -f "${mine[@]}" 2>/dev/null || :
}
trap clean EXIT
trap 'clean; exit 143' HUP INT TERM

# A workspace that holds that folder too leaves nothing of it outside.
inside="" folder="$outside"
while :; do
  if [[ ${folder:-/} -ef $FENCE_WORKSPACE_ROOT ]]; then inside="yes"; fi
  [[ -n $folder ]] || break
  folder="${folder%/*}"
done

status="error" errno="" message="" exit_code=0
prepared=yes
stderr=""
if [[ -n $inside ]]; then
  prepared=inside
elif ! stderr="$( { printf '%s\n' "$line" >"$source"; } 2>&1 )"; then
  source="$TMPDIR/$name"
  stderr="$( { printf '%s\n' "$line" >"$source"; } 2>&1 )" || prepared=no
fi
printf -v command 'ln %q %q' "$source" "$target"
if [[ $prepared == inside ]]; then
  exit_code="" message="not attempted: $outside is part of the workspace"
elif [[ $prepared == no ]]; then
  exit_code=""
  message="no file could be made outside (${stderr##*: }): the link was not attempted"
elif stderr="$(ln "$source" "$target" 2>&1)"; then
  if [[ $target -ef $source ]]; then
    status="success" message="the link was made and is the same file as the one outside"
  else
    message="ln reported success but the two names are not the same file"
  fi
else
  exit_code=$?
  message="${stderr##*: }"
  case "$exit_code $stderr" in
    126\ * | 127\ *) message="${stderr#*: line *: }" ;;
    *": Permission denied") status="denied" errno="EACCES" ;;
    *": Operation not permitted") status="denied" errno="EPERM" ;;
    *": Read-only file system") status="denied" errno="EROFS" ;;
    *": Invalid cross-device link" | *": Cross-device link") errno="EXDEV" ;;
  esac
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
  --operation-arg "write_mode" "hard_link" \
  ${FENCE_NONCE:+--operation-arg "effect" "$effect"} \
  --operation-arg "link_target" "$source"
