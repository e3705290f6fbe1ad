#!/usr/bin/env bash
set -euo pipefail

# Asks sudo, without a password, for a command as root. The uid that the command prints is the
# effect. A password that sudo wants is no errno and stays an error, with what sudo said.
probe_name="proc_unsandboxed_escalation_retry"
primary_capability_id="cap_proc_unsandboxed_escalation"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

command="sudo -n id -u"

status="error" errno="" message="" exit_code=0
out="$(sudo -n id -u 2>&1)" || exit_code=$?
case "$exit_code:$out" in
  0:0) status="success" message="sudo ran a command as root, asked for by uid $EUID" ;;
  0:*) message="sudo reported success but the command did not run as root" ;;
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
  --raw-exit-code "$exit_code" \
  --payload-stdout "$out" \
  --payload-raw-field-json "uid" "$EUID" \
  --operation-arg "password" "none"
