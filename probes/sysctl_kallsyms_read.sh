#!/usr/bin/env bash
set -euo pipefail

# Reads the first lines of /proc/kallsyms and tells whether they hold addresses or zeros. Zeros are
# partial: the kernel hides them. No address is recorded.
probe_name="sysctl_kallsyms_read"
primary_capability_id="cap_sysctl_read_sensitive"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

target="/proc/kallsyms"
printf -v command ': <%q' "$target"
lines=null shown=null

status="error" errno="" message="" exit_code=0
stderr="$( { : <"$target"; } 2>&1 )" || exit_code=$?
if [[ $exit_code -eq 0 ]]; then
  lines=0 shown=0
  # The first symbols of some kernels are offsets that begin at zero.
  while [[ $lines -lt 200 ]] && read -r address _; do
    lines=$((lines + 1))
    if [[ $address == *[!0]* ]]; then shown=$((shown + 1)); fi
  done <"$target" || :
  if [[ $shown -gt 0 ]]; then
    status="success" message="the file was read, and it shows addresses"
  elif [[ $lines -gt 0 ]]; then
    status="partial" message="the file was read, but every address is masked with zeros"
  else
    message="it was opened, but not a line came"
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
  --payload-raw-field-json "lines" "$lines" \
  --payload-raw-field-json "addresses" "$shown" \
  --operation-arg "key" "kallsyms"
