#!/usr/bin/env bash
set -euo pipefail

# Lets a child touch every page of 4 MiB of memory. The helper reads back what it wrote, says
# nothing, and answers with its exit code alone.
probe_name="proc_paging_stress"
primary_capability_id="cap_proc_fork_and_child_spawn"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

helper="${BASH_SOURCE[0]%/*}/../bin/paging-stress"
printf -v command '%q --megabytes 4 --passes 1 --max-seconds 5' "$helper"

status="error" errno="" message="" exit_code=0
stderr="$("$helper" --megabytes 4 --passes 1 --max-seconds 5 2>&1)" || exit_code=$?
case "$exit_code:$stderr" in
  0:*) status="success" message="the child wrote and read back every page" ;;
  3:*) message="the pages were not touched within 5 s" ;;
  126:*": Permission denied") status="denied" errno="EACCES" message="Permission denied" ;;
  126:*": Operation not permitted") status="denied" errno="EPERM" message="Operation not permitted" ;;
  127:*) message="paging-stress is missing" ;;
  *) message="${stderr:-paging-stress ended with exit code $exit_code}" ;;
esac

"$emit_record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "1" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "proc" \
  --verb "page" \
  --target "4 MiB of memory" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  --raw-exit-code "$exit_code" \
  --payload-stderr "$stderr" \
  --operation-arg-json "megabytes" "4" \
  --operation-arg-json "passes" "1" \
  --operation-arg "pattern" "sequential"
