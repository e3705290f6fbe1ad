#!/usr/bin/env bash
set -euo pipefail

# Lists /proc and counts the processes that are neither this shell nor one of its parents. A listing
# without any is partial.
probe_name="fs_proc_other_list"
primary_capability_id="cap_fs_proc_other_processes"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

target="/proc"
printf -v command ': <%q' "$target"
own=" $$ " pid=$$ stat=""
# A name may hold anything: the numbers follow the last bracket.
while { read -r stat <"/proc/$pid/stat"; } 2>/dev/null; do
  stat="${stat##*) ? }" pid="${stat%% *}"
  if [[ $pid -lt 1 ]]; then break; fi
  own="$own$pid "
done
all=0 others=0
shopt -s nullglob

status="error" errno="" message="" exit_code=0
stderr="$( { : <"$target"; } 2>&1 )" || exit_code=$?
if [[ $exit_code -eq 0 ]]; then
  for folder in /proc/[1-9]*; do
    all=$((all + 1))
    if [[ $own != *" ${folder#/proc/} "* ]]; then others=$((others + 1)); fi
  done
  if [[ $all -eq 0 ]]; then
    message="/proc lists no process at all: it is not mounted"
  elif [[ $others -gt 0 ]]; then
    status="success" message="/proc lists other processes"
  else
    status="partial" message="/proc was listed, but it shows only this shell and its parents"
  fi
else
  case "$stderr" in
    *": Permission denied") status="denied" errno="EACCES" ;;
    *": Operation not permitted") status="denied" errno="EPERM" ;;
    *": Read-only file system") status="denied" errno="EROFS" ;;
  esac
  message="${stderr##*: }"
fi

"$emit_record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "1" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "fs" \
  --verb "read" \
  --target "$target" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  --raw-exit-code "$exit_code" \
  --payload-stderr "$stderr" \
  --payload-raw-field-json "processes" "$all" \
  --payload-raw-field-json "others" "$others" \
  --operation-arg "read_mode" "list"
