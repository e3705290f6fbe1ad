#!/usr/bin/env bash
set -euo pipefail

# Looks for a variable by which a sandbox marks the commands that run inside it: those of coding
# agents first, then those of containers.
probe_name="agent_sandbox_env_marker"
primary_capability_id="cap_agent_sandbox_env_marker"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

names="CODEX_SANDBOX_ENV_VAR CODEX_SANDBOX SANDBOX_RUNTIME CLAUDE_CODE_BUBBLEWRAP \
SANDBOX IS_SANDBOX container"
found="" value=""
command="for name in $names; do [[ -z \${!name:-} ]] || break; done"

status="error" errno="" message="" exit_code=0
for name in $names; do
  if [[ -n ${!name:-} ]]; then found="$name" value="${!name}"; break; fi
done
case "$value" in
  0 | [Nn][Oo] | [Nn][Oo][Nn][Ee] | [Oo][Ff][Ff] | [Ff][Aa][Ll][Ss][Ee]) negated="yes" ;;
  *) negated="" ;;
esac
if [[ -n $negated ]]; then
  status="partial" message="$found is set, to a value that says no"
elif [[ -n $found ]]; then
  status="success" message="$found is set"
else
  exit_code=1
  status="partial" message="none of the variables that mark a sandbox is set"
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
