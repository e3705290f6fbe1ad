#!/usr/bin/env bash
set -euo pipefail

# Writes to kernel.hostname the name that the host already has. The setting belongs to the UTS
# namespace: in one of its own nothing outside is reached, and the record says so.
probe_name="sysctl_hostname_write_guard"
primary_capability_id="cap_sysctl_write"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

target="/proc/sys/kernel/hostname"
value="" seen=""
# The first UTS namespace of the machine has the same number on every Linux.
first="uts:[4026531838]" namespace=""
namespace="$(readlink /proc/self/ns/uts 2>/dev/null)" || :

status="error" errno="" message="" exit_code=0
stderr=""
if stderr="$( { : <"$target"; } 2>&1 )"; then read -r value <"$target" || :; fi
printf -v command 'printf %%s\\n %q >%q' "$value" "$target"
if [[ -z $value ]]; then
  exit_code=1
  message="the value could not be read first (${stderr##*: }): the write was not attempted"
elif stderr="$( { printf '%s\n' "$value" >"$target"; } 2>&1 )"; then
  read -r seen <"$target" || :
  if [[ $seen == "$value" ]]; then
    status="success" message="the value was written and read back, the same as before"
    if [[ $namespace != "$first" ]]; then message="$message; not shown to be the host's: another UTS namespace"; fi
  else
    message="the write reported success but the value is another now"
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
  --category "sysctl" \
  --verb "write" \
  --target "$target" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  --raw-exit-code "$exit_code" \
  --payload-stderr "$stderr" \
  --payload-raw-field "uts_namespace" "$namespace" \
  --operation-arg "key" "kernel.hostname" \
  --operation-arg "write_mode" "same_value"
