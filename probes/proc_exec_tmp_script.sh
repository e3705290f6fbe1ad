#!/usr/bin/env bash
set -euo pipefail

# Executes a script that lies in TMPDIR, outside the workspace.
probe_name="proc_exec_tmp_script"
primary_capability_id="cap_proc_exec_toolchain_outside_workspace"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

script="$TMPDIR/stream-probe-exec-$$-$RANDOM"
line="stream probe $$"
trap '[[ ! -e $script ]] || rm -f "$script" 2>/dev/null || :' EXIT
printf -v command %q "$script"

status="error" errno="" message="" stdout="" stderr="" exit_code=0
if stderr="$( { printf '#!/bin/sh\necho "%s"\n' "$line" >"$script" && chmod +x "$script"; } 2>&1 )"; then
  stdout="$("$script" 2>&1)" || exit_code=$?
  if [[ $exit_code -eq 0 && $stdout == "$line" ]]; then
    status="success" message="the script ran and printed its line"
  elif [[ $exit_code -eq 0 ]]; then
    message="the script reported success but did not print its line"
  else
    stderr="$stdout" stdout="" message="${stderr##*: }"
    case "$exit_code:$stderr" in
      126:*": Permission denied") status="denied" errno="EACCES" ;;
      126:*": Operation not permitted") status="denied" errno="EPERM" ;;
    esac
  fi
else
  exit_code="" message="not attempted, no script can be made in TMPDIR: ${stderr##*: }"
fi

"$emit_record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "1" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "proc" \
  --verb "exec" \
  --target "$script" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stdout "$stdout" \
  --payload-stderr "$stderr" \
  --operation-arg "interpreter" "/bin/sh" \
  --operation-arg "folder" "TMPDIR"
