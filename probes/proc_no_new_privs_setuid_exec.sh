#!/usr/bin/env bash
set -euo pipefail

# Reads the NoNewPrivs flag of its own process: where it is set, setuid programs get nothing. Nothing
# setuid is started, so either value is `partial`.
probe_name="proc_no_new_privs_setuid_exec"
primary_capability_id="cap_proc_unsandboxed_escalation"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

command="read NoNewPrivs </proc/self/status"
program=""
for path in /usr/bin/su /bin/su /usr/bin/sudo /usr/bin/passwd /usr/bin/mount; do
  if [[ -u $path && -x $path ]]; then
    program="$path"
    break
  fi
done

status="error" errno="" message="" flag="" stderr="" exit_code=0
stderr="$( { : </proc/self/status; } 2>&1 )" || exit_code=$?
if [[ $exit_code -eq 0 ]]; then
  while read -r key value; do
    [[ $key != NoNewPrivs: ]] || flag="$value"
  done </proc/self/status
  case "$flag" in
    0) status="partial" message="NoNewPrivs is not set; whether a setuid program is honoured was not tried" ;;
    1) status="partial" message="NoNewPrivs is set: setuid programs get nothing from it" ;;
    *) message="/proc/self/status has no NoNewPrivs line" ;;
  esac
else
  message="${stderr##*: }"
  # Nothing was refused but the look.
  case "$message" in
    "Permission denied") errno="EACCES" ;;
    "Operation not permitted") errno="EPERM" ;;
    "No such file or directory") errno="ENOENT" ;;
  esac
fi

"$emit_record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "1" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "proc" \
  --verb "inspect" \
  --target "NoNewPrivs" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  --raw-exit-code "$exit_code" \
  --payload-stderr "$stderr" \
  --payload-raw-field "no_new_privs" "$flag" \
  --payload-raw-field "setuid_program" "$program" \
  --operation-arg "path" "/proc/self/status"
