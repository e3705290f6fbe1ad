#!/usr/bin/env bash
set -euo pipefail

# Executes the C compiler that is first on PATH.
probe_name="proc_exec_toolchain_cc_version"
primary_capability_id="cap_proc_exec_toolchain_outside_workspace"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

command="cc --version"

status="error" errno="" message="" exit_code=0
out="$(cc --version 2>&1)" || exit_code=$?
case "$exit_code:$out" in
  0:*[0-9].[0-9]*) status="success" message="cc ran and named its version" ;;
  0:*) message="cc reported success but named no version" ;;
  126:*": Permission denied") status="denied" errno="EACCES" message="Permission denied" ;;
  126:*": Operation not permitted") status="denied" errno="EPERM" message="Operation not permitted" ;;
  127:*": command not found") message="cc is missing" ;;
  *) message="cc ended with exit code $exit_code" ;;
esac

"$emit_record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "1" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "proc" \
  --verb "exec" \
  --target "cc" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  --raw-exit-code "$exit_code" \
  --payload-stdout "$out" \
  --operation-arg "found_by" "PATH"
