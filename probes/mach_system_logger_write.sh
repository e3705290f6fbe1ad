#!/usr/bin/env bash
set -euo pipefail

# Sends one line, tagged stream-probe, to the system's logger, which macOS reaches by a Mach service.
# The exit code of logger says nothing, so the line is unconfirmed. Elsewhere there is no such service.
probe_name="mach_system_logger_write"
primary_capability_id="cap_mach_lookup_system_logger"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

target="com.apple.system.logger"
line="stream probe $$"
printf -v command 'logger -s -p user.notice -t stream-probe %q' "$line"

status="error" errno="" message="" exit_code=0
stderr=""
if [[ $OSTYPE == darwin* ]]; then
  stderr="$(logger -s -p user.notice -t stream-probe "$line" 2>&1)" || exit_code=$?
else
  exit_code=1 stderr="unmeasured"
fi
case "$exit_code:$stderr" in
  1:unmeasured) exit_code="" stderr="" message="not attempted: Mach services are macOS only, not measured on $OSTYPE" ;;
  *": Permission denied") status="denied" errno="EACCES" message="Permission denied" ;;
  *": Operation not permitted") status="denied" errno="EPERM" message="Operation not permitted" ;;
  *": No such file or directory") errno="ENOENT" message="there is no $target" ;;
  *": Connection refused") errno="ECONNREFUSED" message="nobody listens at $target" ;;
  127:*) message="logger is missing" ;;
  0:*) message="logger reported success but nothing confirms that the line arrived" ;;
  *) message="${stderr:-logger ended with exit code $exit_code}" ;;
esac
[[ $exit_code -ne 127 ]] || errno="" message="logger is missing"

"$emit_record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "1" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "ipc" \
  --verb "mach-lookup" \
  --target "$target" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stderr "$stderr" \
  --operation-arg "facility" "user.notice" \
  --operation-arg "tag" "stream-probe"
