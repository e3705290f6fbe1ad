#!/usr/bin/env bash
set -euo pipefail

# Asks whether pid 1, a process outside the sandbox, may be signalled. Signal 0 only checks the
# permission; nothing is delivered. In a pid namespace of its own pid 1 belongs to the sandbox, so
# nothing is attempted there.
probe_name="proc_signal_foreign"
primary_capability_id="cap_proc_signal_foreign"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

command="kill -0 1"
same_user="null"
[[ ! -e /proc/1 ]] || same_user="false"
[[ ! -O /proc/1 ]] || same_user="true"

# The first pid namespace of the machine has the same number on every Linux.
first="pid:[4026531836]" namespace=""
if [[ $OSTYPE == linux* ]]; then
  namespace="$(readlink /proc/self/ns/pid 2>/dev/null)" || :
else
  namespace="$first"
fi

status="error" errno="" message="" stderr="" exit_code=0
if [[ -z $namespace ]]; then
  exit_code=""
  message="not attempted: readlink of /proc/self/ns/pid failed, so pid 1 may be the sandbox's own"
elif [[ $namespace != "$first" ]]; then
  exit_code="" message="not attempted: no process outside this pid namespace is visible"
elif [[ $$ -eq 1 ]]; then
  exit_code="" message="not attempted: the probe is pid 1 itself"
elif stderr="$(kill -0 1 2>&1)"; then
  status="success" message="pid 1 may be signalled: signal 0, which only asks, was permitted"
else
  exit_code=1 message="${stderr##* - }"
  case "$message" in
    "Permission denied") status="denied" errno="EACCES" ;;
    "Operation not permitted") status="denied" errno="EPERM" ;;
    "No such process") errno="ESRCH" message="pid 1 cannot be seen" ;;
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
  --target "pid 1" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stderr "$stderr" \
  --payload-raw-field "pid_namespace" "$namespace" \
  --payload-raw-field-json "pid_1_has_same_user" "$same_user" \
  --operation-arg "signal" "0"
