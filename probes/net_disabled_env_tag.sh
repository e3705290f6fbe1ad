#!/usr/bin/env bash
set -euo pipefail

# Looks for the variable that marks a sandbox without network. Whether the network really is off is
# for other probes to tell: the tag alone is a declaration, and `partial`.
probe_name="net_disabled_env_tag"
primary_capability_id="cap_net_disabled_with_tag"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

names="CODEX_SANDBOX_NETWORK_DISABLED"
found="" value=""
command="for name in $names; do [[ -z \${!name:-} ]] || break; done"

status="error" errno="" message="" exit_code=0
for name in $names; do
  if [[ -n ${!name:-} ]]; then found="$name" value="${!name}"; break; fi
done
if [[ -n $found ]]; then
  status="partial" message="$found is set; whether the network is off was not tried"
else
  exit_code=1
  status="partial" message="the variable that marks a sandbox without network is not set"
fi

"$emit_record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "1" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "net" \
  --verb "inspect" \
  --target "environment" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  --raw-exit-code "$exit_code" \
  --payload-raw-field "variable" "$found" \
  --payload-raw-field "value" "${value:0:80}" \
  --operation-arg-list "variables" "$names"
