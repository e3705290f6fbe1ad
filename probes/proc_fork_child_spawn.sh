#!/usr/bin/env bash
set -euo pipefail

# Forks a subshell and sees its exit status arrive. A refused fork ends the shell, so the record is
# handed over in the EXIT trap, by exec, which needs no fork.
probe_name="proc_fork_child_spawn"
primary_capability_id="cap_proc_fork_and_child_spawn"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

command="( exit 7 ) & wait"
child="" stderr="" exit_code=1
report() {
  trap - EXIT
  exec 2>&3
  status="error" errno="" message=""
  if [[ -n $child ]]; then
    if [[ $child -ne $$ && $exit_code -eq 7 ]]; then
      status="success" message="a child with a pid of its own ended with the exit status it chose"
    else
      message="the child ended with $exit_code instead of 7"
    fi
  else
    read -r stderr <"$errors" || :
    case "$stderr" in
      *": Permission denied") status="denied" errno="EACCES" ;;
      *": Operation not permitted") status="denied" errno="EPERM" ;;
      *": Resource temporarily unavailable") errno="EAGAIN" ;;
      *": Function not implemented") errno="ENOSYS" ;;
    esac
    message="${stderr#*: }"
  fi

  exec "$emit_record" \
    --run-mode "$FENCE_RUN_MODE" \
    --probe-name "$probe_name" \
    --probe-version "1" \
    --primary-capability-id "$primary_capability_id" \
    --command "$command" \
    --category "proc" \
    --verb "fork" \
    --target "subshell" \
    --status "$status" \
    --errno "$errno" \
    --message "$message" \
    --raw-exit-code "$exit_code" \
    --payload-stderr "$stderr" \
    --operation-arg "expected_exit_status" "7"
}
errors="$TMPDIR/stderr"
{ : >"$errors"; } 2>/dev/null || errors="/dev/null"
exec 3>&2 2>"$errors"
trap report EXIT

(exit 7) &
child="$!"
wait "$child" && exit_code=0 || exit_code=$?
