#!/usr/bin/env bash
set -euo pipefail

# Runs ps, which a sandbox that denies by default has no reason to allow, and looks for this shell
# in its list. `success` says that it was carried out, which is evidence against a default of no;
# `denied` is evidence for it.
probe_name="sandbox_default_deny_ps"
primary_capability_id="cap_sandbox_default_deny"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

target="ps"
printf -v command 'ps -p %q -o pid=' "$$"

status="error" errno="" message="" exit_code=0
stderr="" output=""
output="$(ps -p "$$" -o pid= 2>&1)" || exit_code=$?
if [[ $exit_code -eq 0 ]]; then
  if [[ ${output//[[:space:]]/} == "$$" ]]; then
    status="success" message="ps ran and listed this shell: evidence against a default deny"
  else
    message="ps ran but did not list this shell"
  fi
else
  stderr="$output" output=""
  case "$stderr" in
    *": Permission denied") status="denied" errno="EACCES" ;;
    *": Operation not permitted") status="denied" errno="EPERM" ;;
    *": Read-only file system") status="denied" errno="EROFS" ;;
  esac
  message="${stderr##*: }: evidence for a default deny"
  if [[ $status == error ]]; then message="ps failed: ${stderr#*: line *: }"; fi
fi

"$emit_record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "1" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "proc" \
  --verb "inspect" \
  --target "$target" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  --raw-exit-code "$exit_code" \
  --payload-stdout "$output" \
  --payload-stderr "$stderr" \
  --operation-arg "pid" "self"
