#!/usr/bin/env bash
set -euo pipefail

# Reads the environment of FENCE_VICTIM_PID, a process outside the sandbox. Of what is in it only
# STREAM_TOKEN is recorded: it was made up outside, and shows there that the file was really read.
probe_name="proc_read_victim_environ"
primary_capability_id="cap_fs_proc_other_processes"
needs="targets"
effect="read:victim"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

target="/proc/${FENCE_VICTIM_PID:-PID}/environ"
printf -v command 'grep -z ^STREAM_TOKEN= %q' "$target"

status="error" errno="" message="" stderr="" token="" exit_code=0
if [[ -z ${FENCE_VICTIM_PID:-} ]]; then
  exit_code="" message="not attempted: it needs $needs, and there is no FENCE_VICTIM_PID"
elif stderr="$( { : <"$target"; } 2>&1 )"; then
  while IFS= read -r -d '' variable; do
    if [[ $variable == STREAM_TOKEN=* ]]; then token="${variable#*=}"; fi
  done <"$target"
  if [[ -n $token ]]; then
    status="success" message="the environment of a process outside was read"
  else
    message="a file is there, but not what was put into it: the number is that of another process"
  fi
else
  exit_code=$? message="${stderr##*: }"
  case "$stderr" in
    *": Permission denied") status="denied" errno="EACCES" ;;
    *": Operation not permitted") status="denied" errno="EPERM" ;;
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
  --verb "read" \
  --target "$target" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stderr "$stderr" \
  ${token:+--payload-raw-field "token" "$token"} \
  --operation-arg "effect" "$effect"
