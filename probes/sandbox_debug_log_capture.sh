#!/usr/bin/env bash
set -euo pipefail

# Causes one denial under sandbox-exec and looks for its line in the system log. Both
# tools are part of macOS; elsewhere they are missing, which is an error.
probe_name="sandbox_debug_log_capture"
primary_capability_id="cap_sandbox_debug_and_trace_logging"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

target="log show"
profile='(version 1)(allow default)(deny file-read-data (literal "/private/etc/hosts"))'
predicate='eventMessage CONTAINS "Sandbox:"'
printf -v command 'sandbox-exec -p %q cat /etc/hosts; %s --predicate %q' \
  "$profile" "log show --last 10s --style compact" "$predicate"
lines=null

status="error" errno="" message="" exit_code=0
stderr=""
for tool in sandbox-exec log; do
  if [[ -z $message ]] && ! type -P "$tool" >/dev/null; then
    exit_code="" message="$tool: not found"
  fi
done
said=""
if [[ -z $message ]]; then
  # sandbox-exec becomes cat, so that the entry in the log names this pid.
  sandbox-exec -p "$profile" cat /etc/hosts >/dev/null 2>"$TMPDIR/said" &
  pid="$!"
  wait "$pid" || :
  read -r said <"$TMPDIR/said" || :
  rm -f "$TMPDIR/said"
  if [[ $said != "cat: "*": Operation not permitted" ]]; then
    exit_code="" message="not attempted, no denial could be caused: ${said:-cat was let through}"
  fi
fi
if [[ -z $message ]]; then
  if stderr="$(log show --last 10s --style compact --predicate "$predicate" 2>&1)"; then
    lines=0
    while read -r line; do
      if [[ $line == *"Sandbox: cat($pid) deny"*/etc/hosts* ]]; then lines=$((lines + 1)); fi
    done <<<"$stderr"
    stderr=""
    if [[ $lines -gt 0 ]]; then
      status="success" message="the log shows the denial that was caused"
    else
      status="partial" message="the log was read, but the denial that was caused is not in it"
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
fi

"$emit_record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "1" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "sandbox_meta" \
  --verb "inspect" \
  --target "$target" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stderr "$stderr" \
  --payload-raw-field-json "denials" "$lines" \
  --operation-arg "window" "10s"
