#!/usr/bin/env bash
set -euo pipefail

# Executes the python3 that /usr/bin/env finds on PATH, and lets it calculate.
probe_name="proc_exec_env_python3"
primary_capability_id="cap_proc_exec_toolchain_outside_workspace"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

command="/usr/bin/env python3 -I -S -c 'print(6 * 7)'"

status="error" errno="" message="" exit_code=0
out="$(/usr/bin/env python3 -I -S -c 'print(6 * 7)' 2>&1)" || exit_code=$?
# With no python3 on PATH, a folder of PATH that may not be searched gives EACCES all the same.
found="$(type -P python3)" || :
if [[ $exit_code -eq 126 && -z $found && -x /usr/bin/env ]]; then
  out="python3 is not to be seen on PATH, and a folder of PATH may not be searched"
fi
case "$exit_code:$out" in
  126:"python3 is not to be seen"*) message="$out" ;;
  0:42) status="success" message="python3 ran and calculated 42" ;;
  0:*) message="python3 reported success but did not print 42" ;;
  126:*": Permission denied") status="denied" errno="EACCES" message="Permission denied" ;;
  126:*": Operation not permitted") status="denied" errno="EPERM" message="Operation not permitted" ;;
  127:*"/usr/bin/env: No such file or directory") message="/usr/bin/env is missing" ;;
  127:*env:*": No such file or directory") message="python3 is missing" ;;
  *) message="python3 ended with exit code $exit_code" ;;
esac

"$emit_record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "1" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "proc" \
  --verb "exec" \
  --target "/usr/bin/env python3" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  --raw-exit-code "$exit_code" \
  --payload-stdout "$out" \
  --operation-arg "found_by" "PATH"
