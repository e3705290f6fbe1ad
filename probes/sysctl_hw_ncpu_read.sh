#!/usr/bin/env bash
set -euo pipefail

# Asks the system how many processors are online.
probe_name="sysctl_hw_ncpu_read"
primary_capability_id="cap_sysctl_read_basic"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

target="_NPROCESSORS_ONLN"
printf -v command 'getconf %q' "$target"

status="error" errno="" message="" exit_code=0
stderr="" output=""
output="$(getconf "$target" 2>&1)" || exit_code=$?
if [[ $exit_code -eq 0 ]]; then
  if [[ $output == [1-9]* ]]; then
    status="success" message="the number of processors was read"
    # Where the C library can read none of its sources, it counts those that this process may use.
    if [[ $OSTYPE == linux* ]] && ! { : </sys/devices/system/cpu/online; } 2>/dev/null \
      && ! { : </proc/stat; } 2>/dev/null; then
      status="partial" message="getconf gave a number, but what it is read from is not to be seen here"
    fi
  else
    message="getconf reported success but gave no number"
  fi
else
  stderr="$output" output=""
  message="${stderr##*: }"
  case "$exit_code $stderr" in
    126\ * | 127\ *) message="${stderr#*: line *: }" ;;
    *": Permission denied") status="denied" errno="EACCES" ;;
    *": Operation not permitted") status="denied" errno="EPERM" ;;
    *": Read-only file system") status="denied" errno="EROFS" ;;
  esac
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
  --payload-stdout "$output" \
  --payload-stderr "$stderr" \
  --operation-arg "key" "hw.ncpu"
