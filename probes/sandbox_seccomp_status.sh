#!/usr/bin/env bash
set -euo pipefail

# Reads from /proc/self/status what holds this process: the seccomp mode (2 is a filter), the number
# of filters, no_new_privs and the effective capabilities. They show that there is a filter, not what
# it does by default, so this is never more than `partial`.
probe_name="sandbox_seccomp_status"
primary_capability_id="cap_sandbox_default_deny"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

target="/proc/self/status"
printf -v command ': <%q' "$target"
seccomp="" filters="" no_new_privs="" cap_eff=""

status="error" errno="" message="" exit_code=0
stderr="$( { : <"$target"; } 2>&1 )" || exit_code=$?
if [[ $exit_code -eq 0 ]]; then
  while read -r key value; do
    case "$key" in
      Seccomp:) seccomp="$value" ;;
      Seccomp_filters:) filters="$value" ;;
      NoNewPrivs:) no_new_privs="$value" ;;
      CapEff:) cap_eff="$value" ;;
    esac
  done <"$target" || :
  case "$seccomp" in
    0) status="partial" message="no seccomp filter is active; a default deny was not tried" ;;
    1) status="partial" message="seccomp is in strict mode; a default deny was not tried" ;;
    2) status="partial" message="a seccomp filter is active; whether it denies by default was not tried" ;;
    *) message="the file has no Seccomp line" ;;
  esac
else
  # Nothing was refused but the look.
  case "$stderr" in
    *": Permission denied") errno="EACCES" ;;
    *": Operation not permitted") errno="EPERM" ;;
  esac
  message="${stderr##*: }"
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
  --raw-exit-code "$exit_code" \
  --payload-stderr "$stderr" \
  --payload-raw-field "seccomp" "$seccomp" \
  --payload-raw-field "seccomp_filters" "$filters" \
  --payload-raw-field "no_new_privs" "$no_new_privs" \
  --payload-raw-field "capabilities_effective" "$cap_eff" \
  --operation-arg "read_mode" "open"
