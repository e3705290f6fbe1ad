#!/usr/bin/env bash
set -euo pipefail

# Sends SIGUSR1 to FENCE_VICTIM_PID, a process outside the sandbox, which reports there that it came.
probe_name="proc_signal_victim"
primary_capability_id="cap_proc_signal_foreign"
needs="targets"
effect="signal:victim"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

pid="${FENCE_VICTIM_PID:-}"
command="kill -USR1 ${pid:-PID}"

# In a pid namespace of its own the number may be that of another process, which it would end.
is_other=""
if [[ -n $pid ]] && { : <"/proc/$pid/environ"; } 2>/dev/null; then
  is_other="yes"
  while IFS= read -r -d '' variable; do
    if [[ $variable == STREAM_TOKEN=* ]]; then is_other=""; fi
  done 2>/dev/null <"/proc/$pid/environ" || :
fi

status="error" errno="" message="" stderr="" exit_code=0
if [[ -z $pid ]]; then
  exit_code="" message="not attempted: it needs $needs, and there is no FENCE_VICTIM_PID"
elif [[ -n $is_other ]]; then
  exit_code="" message="not attempted: the process of that number is another one"
elif stderr="$(kill -USR1 "$pid" 2>&1)"; then
  status="success" message="the signal was sent; whether it arrived, the one that gets it knows"
else
  exit_code=1 message="${stderr##*- }"
  case "$message" in
    "Permission denied") status="denied" errno="EACCES" ;;
    "Operation not permitted") status="denied" errno="EPERM" ;;
    "No such process") errno="ESRCH" ;;
    "Function not implemented") errno="ENOSYS" ;;
  esac
fi

"$emit_record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "1" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "proc" \
  --verb "signal" \
  --target "pid ${pid:-of FENCE_VICTIM_PID}" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stderr "$stderr" \
  --operation-arg "signal" "SIGUSR1" \
  --operation-arg "effect" "$effect"
