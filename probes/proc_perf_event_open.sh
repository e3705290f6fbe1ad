#!/usr/bin/env bash
set -euo pipefail

# Opens a software performance counter on itself (the processor time of this process) and reads it.
probe_name="proc_perf_event_open"
primary_capability_id="cap_proc_perf_event"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

# shellcheck disable=SC2016 # perl expands these
program='
sub stop {
  my $n = $! + 0;
  my ($name) = eval q($! = $n; grep { $!{$_} } sort keys %!); # only now, because it loads Errno.pm
  print "$_[0] ", $name || $n;
  exit 1;
}
my $open = shift() + 0;
# PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK, without kernel and hypervisor
my $attributes = pack "LLQx24Qx16", 1, 64, 1, 0x60;
my $event = syscall($open, $attributes, 0, -1, -1, 0);
$event >= 0 or stop "failed perf_event_open";
open(my $counter, "<&=", $event) or stop "failed fdopen";
sysread($counter, my $count, 8) or stop "failed read";
print unpack("Q", $count) > 0 ? "seen" : "unseen";
'
# System call number: perf_event_open.
case "$OSTYPE:$HOSTTYPE" in
  linux*:x86_64) calls="298" ;;
  linux*:aarch64) calls="241" ;;
  *) calls="" ;;
esac
printf -v command 'perl -e %q %q' "$program" "$calls"

status="error" errno="" message="" exit_code=0
if [[ -n $calls ]]; then
  out="$(perl -e "$program" "$calls" 2>&1)" || exit_code=$?
else
  out="unmeasured" exit_code=1
fi
case "$exit_code:$out" in
  0:seen*) status="success" message="the counter counts" ;;
  0:unseen*) message="the counter opened but stands at zero" ;;
  "1:failed "*)
    errno="${out##* }" message="${out#failed }" message="${message% *} failed"
    case "$errno" in EACCES | EPERM | EROFS) status="denied" ;; esac
    ;;
  1:unmeasured) exit_code="" message="perf_event_open is not measured on $OSTYPE $HOSTTYPE" ;;
  127:*": command not found") message="perl is missing" ;;
  159:*) message="perl was killed by SIGSYS" ;;
  *) message="perl ended with exit code $exit_code: $out" ;;
esac

"$emit_record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "1" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "proc" \
  --verb "perf" \
  --target "PERF_COUNT_SW_TASK_CLOCK" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stdout "$out" \
  --operation-arg "type" "software" \
  --operation-arg "scope" "own process"
