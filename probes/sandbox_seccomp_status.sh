#!/usr/bin/env bash
set -euo pipefail

# Reads from /proc/self/status what holds this process: the seccomp mode (2 is a filter), the number
# of filters, no_new_privs and the effective capabilities. Success says that they were read.
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
  if [[ -n $seccomp && -n $no_new_privs && -n $cap_eff ]]; then
    status="success" message="seccomp $seccomp, no_new_privs $no_new_privs, capabilities $cap_eff"
  else
    status="partial" message="Seccomp, NoNewPrivs or CapEff is missing in the file"
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
