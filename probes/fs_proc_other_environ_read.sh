#!/usr/bin/env bash
set -euo pipefail

# Opens the environment of a process outside the sandbox: the highest parent of the harness that runs
# as the same user, or the first process where there is none. In a pid namespace of its own all of
# them belong to the sandbox, so nothing is attempted there. Nothing of what is in it is recorded.
probe_name="fs_proc_other_environ_read"
primary_capability_id="cap_fs_proc_other_processes"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

# The first pid namespace of the machine has the same number on every Linux.
first="pid:[4026531836]" namespace=""
namespace="$(readlink /proc/self/ns/pid 2>/dev/null)" || :
other=1 pid="$PPID" stat="" self="$$"
{ read -r self _ </proc/self/stat; } 2>/dev/null || :
# A name may hold anything, also a line end: the numbers follow the last bracket.
while [[ $pid -gt 1 ]]; do
  stat=""
  { IFS= read -r -d '' stat <"/proc/$pid/stat"; } 2>/dev/null || :
  stat="${stat##*) ? }" pid="${stat%% *}"
  if [[ $pid -gt 1 && -O /proc/$pid/environ ]]; then other="$pid"; fi
done
target="/proc/$other/environ"
name=""
{ read -r name <"/proc/$other/comm"; } 2>/dev/null || :
printf -v command ': <%q' "$target"

status="error" errno="" message="" exit_code=0
stderr=""
if [[ -z $namespace ]]; then
  exit_code=""
  message="not attempted: readlink of /proc/self/ns/pid failed, so every process may be the sandbox's own"
elif [[ $namespace != "$first" && $self != "$$" ]]; then
  exit_code="" message="not attempted: /proc belongs to another pid namespace than this shell"
elif [[ $namespace != "$first" ]]; then
  exit_code="" message="not attempted: no process outside this pid namespace is visible"
elif [[ $other -eq $$ || $other -eq $PPID ]]; then
  exit_code="" message="not attempted: the only other process is the harness itself"
elif stderr="$( { : <"$target"; } 2>&1 )"; then
  if IFS= read -r -d '' -n 1 _ <"$target"; then
    status="success" message="the environment of another process was opened and a byte read"
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
  --payload-raw-field "pid_namespace" "$namespace" \
  --payload-raw-field "process" "$name" \
  --operation-arg "read_mode" "open"
