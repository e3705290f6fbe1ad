#!/usr/bin/env bash
set -euo pipefail

# Reads whether the kernel hides its addresses.
probe_name="sysctl_kernel_kptr_read"
primary_capability_id="cap_sysctl_read_sensitive"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

target="/proc/sys/kernel/kptr_restrict"
printf -v command 'read -r value <%q' "$target"

status="error" errno="" message="" exit_code=0
value=""
stderr="$( { : <"$target"; } 2>&1 )" || exit_code=$?
if [[ $exit_code -eq 0 ]]; then
  read -r value <"$target" || :
  if [[ -n $value ]]; then
    status="success" message="the value was read"
  else
    message="it was opened, but it holds no value"
  fi
else
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
  --category "sysctl" \
  --verb "read" \
  --target "$target" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  --raw-exit-code "$exit_code" \
  --payload-stderr "$stderr" \
  --payload-raw-field "value" "${value:0:80}" \
  --operation-arg "key" "kernel.kptr_restrict"
