#!/usr/bin/env bash
set -euo pipefail

# Looks for a variable in which the agent tells its commands how approvals are given.
probe_name="agent_approvals_mode_env"
primary_capability_id="cap_agent_approvals_mode"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

names="FENCE_APPROVALS_MODE CODEX_APPROVALS_MODE CODEX_APPROVAL_MODE \
CODEX_APPROVALS CODEX_PERMISSIONS_MODE"
found="" value=""
command="for name in $names; do [[ -z \${!name:-} ]] || break; done"

status="error" errno="" message="" exit_code=0
for name in $names; do
  if [[ -n ${!name:-} ]]; then found="$name" value="${!name}"; break; fi
done
if [[ -n $found ]]; then
  status="success" message="$found is set"
else
  exit_code=1
  status="partial" message="none of the variables that tell the approvals mode is set"
fi

"$emit_record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "1" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "agent_policy" \
  --verb "inspect" \
  --target "environment" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  --raw-exit-code "$exit_code" \
  --payload-raw-field "variable" "$found" \
  --payload-raw-field "value" "${value:0:80}" \
  --operation-arg-list "variables" "$names"
