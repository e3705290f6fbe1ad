#!/usr/bin/env bash
set -euo pipefail

# Reads the first line of the host table.
probe_name="read_hosts"
primary_capability_id="cap_read_hosts"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

target="/etc/hosts"
status="error" errno="" message="" exit_code=0 line=""
stderr="$( { read -r line <"$target"; } 2>&1 )" || exit_code=$?
if [[ $exit_code -eq 0 ]]; then
  status="success" message="the first line was read"
else
  case "$stderr" in
    *": Permission denied") status="denied" errno="EACCES" ;;
    *": Operation not permitted") status="denied" errno="EPERM" ;;
  esac
  message="${stderr##*: }"
fi

"$emit_record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "1" \
  --primary-capability-id "$primary_capability_id" \
  --command "read -r line <$target" \
  --category "fs" \
  --verb "read" \
  --target "$target" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  --raw-exit-code "$exit_code" \
  --payload-stderr "$stderr"
