#!/usr/bin/env bash
set -euo pipefail

# Executes the system's own python3 by its full path.
probe_name="proc_exec_toolchain_python3"
primary_capability_id="cap_proc_exec_toolchain_outside_workspace"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

command="/usr/bin/python3 -V"

status="error" errno="" message="" exit_code=0
out="$(/usr/bin/python3 -V 2>&1)" || exit_code=$?
case "$exit_code:$out" in
  0:"Python 3"*) status="success" message="python3 ran and named its version" ;;
  0:*) message="python3 reported success but named no version" ;;
  126:*": Permission denied") status="denied" errno="EACCES" message="Permission denied" ;;
  126:*": Operation not permitted") status="denied" errno="EPERM" message="Operation not permitted" ;;
  127:*"/usr/bin/python3: No such file or directory") message="/usr/bin/python3 is missing" ;;
  *) message="/usr/bin/python3 ended with exit code $exit_code" ;;
esac

"$emit_record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "1" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "proc" \
  --verb "exec" \
  --target "/usr/bin/python3" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  --raw-exit-code "$exit_code" \
  --payload-stdout "$out" \
  --operation-arg "found_by" "full path"
