#!/usr/bin/env bash
set -euo pipefail

# Asks sudo, without a password, for a command as root. The uid that the command prints shows that it
# ran, not whether it ran outside the sandbox: `partial`. A password that sudo wants is no errno and
# stays an error, with what sudo said. Root itself has nothing to ask for.
probe_name="proc_unsandboxed_escalation_retry"
primary_capability_id="cap_proc_unsandboxed_escalation"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

command="sudo -n id -u"

status="error" errno="" message="" exit_code=0
if [[ $EUID -ne 0 ]]; then
  out="$(sudo -n id -u 2>&1)" || exit_code=$?
else
  out="unready" exit_code=1
fi
case "$exit_code:$out" in
  0:0) status="partial" message="sudo ran a command as root; whether it left the sandbox was not tried" ;;
  0:*) message="sudo reported success but the command did not run as root" ;;
  1:unready) exit_code="" message="not attempted: this is root already" ;;
  126:*": Permission denied") status="denied" errno="EACCES" message="Permission denied" ;;
  126:*": Operation not permitted") status="denied" errno="EPERM" message="Operation not permitted" ;;
  127:*) message="sudo is missing" ;;
  *) message="${out%%$'\n'*}" ;;
esac

"$emit_record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "1" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "proc" \
  --verb "escalate" \
  --target "sudo" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stdout "$out" \
  --payload-raw-field-json "uid" "$EUID" \
  --operation-arg "password" "none"
