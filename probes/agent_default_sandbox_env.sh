#!/usr/bin/env bash
set -euo pipefail

# Looks for a variable in which the agent tells its commands that a sandbox is its default. That is a
# declaration, and a value may as well say no: `partial`.
probe_name="agent_default_sandbox_env"
primary_capability_id="cap_agent_default_sandboxing"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

names="CODEX_SANDBOX CODEX_SANDBOX_ENV_VAR GEMINI_SANDBOX"
found="" value=""
command="for name in $names; do [[ -z \${!name:-} ]] || break; done"

status="error" errno="" message="" exit_code=0
for name in $names; do
  if [[ -n ${!name:-} ]]; then found="$name" value="${!name}"; break; fi
done
if [[ -n $found ]]; then
  status="partial" message="$found is set, which declares a sandbox; whether there is one was not tried"
else
  exit_code=1
  status="partial" message="none of the variables that tell of a default sandbox is set"
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
