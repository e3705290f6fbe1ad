#!/usr/bin/env bash
set -euo pipefail

# Lists /proc and counts the processes that have nothing to do with this run: not the harness, which
# started this shell, nor what descends from it, such as the probes beside this one, nor its parents.
# A listing without any is partial.
probe_name="fs_proc_other_list"
primary_capability_id="cap_fs_proc_other_processes"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

target="/proc"
printf -v command ': <%q' "$target"
all=null others=null stat="" group="" parents=(0)
shopt -s nullglob

# Into parents[pid], 0 for none. A name may hold anything, also a line end: the numbers follow the last
# bracket. Who is just gone has no group any more, and seems to have no parent.
read_parent() {
  stat=""
  { IFS= read -r -d '' stat <"/proc/$1/stat"; } 2>/dev/null || :
  stat="${stat##*) ? }" group="${stat#* }" stat="${stat%% *}"
  if [[ $stat == [0-9]* && ${group%% *} != -1 ]]; then parents[$1]="$stat"; fi
}

# As this /proc numbers them, which need not be the numbers that the shell knows.
{ read -r self _ </proc/self/stat; } 2>/dev/null || self=0
read_parent "$self"
harness="${parents[self]:-0}" above=" 0 " pid="${parents[self]:-0}"
while [[ $pid -gt 0 ]]; do
  read_parent "$pid"
  pid="${parents[pid]:-0}" above="$above$pid "
done

status="error" errno="" message="" exit_code=0
stderr="$( { : <"$target"; } 2>&1 )" || exit_code=$?
if [[ $exit_code -eq 0 ]]; then
  all=0 others=0
  for folder in /proc/[1-9]*; do
    all=$((all + 1))
    read_parent "${folder#/proc/}"
  done
  for pid in "${!parents[@]}"; do
    if [[ $pid == "$harness" || $above == *" $pid "* ]]; then continue; fi
    # Up to the harness, or past it to its parents. Who loses a parent meanwhile does not count.
    up="$pid" steps=0
    while [[ $steps -lt 100 && -n $up && $up != "$harness" && $above != *" $up "* ]]; do
      up="${parents[up]:-}" steps=$((steps + 1))
    done
    if [[ $above == *" $up "* ]]; then others=$((others + 1)); fi
  done
  if [[ $all -eq 0 ]]; then
    others=null message="/proc lists no process at all: it is not mounted"
  elif [[ $harness -eq 0 ]]; then
    others=null message="/proc was listed, but it does not tell who belongs to this run"
  elif [[ $others -gt 0 ]]; then
    status="success" message="/proc lists processes that have nothing to do with this run"
  else
    status="partial" message="/proc was listed, but it shows only this run and its parents"
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
