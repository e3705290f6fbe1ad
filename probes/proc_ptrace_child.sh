#!/usr/bin/env bash
set -euo pipefail

# Attaches to a child of its own with ptrace, sees it stop, and detaches. The child ends by itself
# when the pipe closes.
probe_name="proc_ptrace_child"
primary_capability_id="cap_proc_ptrace"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

# shellcheck disable=SC2016 # perl expands these
program='
sub stop {
  my $n = $! + 0;
  my ($name) = eval q($! = $n; grep { $!{$_} } sort keys %!); # only now, because it loads Errno.pm
  print "$_[0] ", $name || $n;
  exit 1;
}
my $ptrace = shift() + 0;
alarm 2;
pipe(my $reader, my $writer) or stop "unready pipe";
defined(my $pid = fork) or stop "unready fork";
if (!$pid) { close $writer; sysread $reader, my $byte, 1; exit 0 }
my $attached = syscall($ptrace, 16, $pid, 0, 0) == 0; # PTRACE_ATTACH
my $error = $! + 0;
my $stopped = $attached && waitpid($pid, 0) == $pid; # a stop or its end: perl does not say which,
syscall($ptrace, 17, $pid, 0, 0) if $attached; # PTRACE_DETACH
kill "KILL", $pid;
close $writer;
my $alive = waitpid($pid, 0) == $pid && $? == 9; # but only a child that had stopped can still be killed
if (!$attached) { $! = $error; stop "failed ptrace" }
print $stopped && $alive ? "seen" : "unseen";
'
# System call number: ptrace.
case "$OSTYPE:$HOSTTYPE" in
  linux*:x86_64) calls="101" ;;
  linux*:aarch64) calls="117" ;;
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
  0:seen*) status="success" message="the child stopped for its tracer" ;;
  0:unseen*) message="ptrace reported success but the child did not stop" ;;
  "1:failed "*)
    errno="${out##* }" message="${out#failed }" message="${message% *} failed"
    case "$errno" in EACCES | EPERM | EROFS) status="denied" ;; esac
    ;;
  "1:unready "*) exit_code="" message="not attempted: ${out#unready }" ;;
  1:unmeasured) exit_code="" message="ptrace is not measured on $OSTYPE $HOSTTYPE" ;;
  127:*": command not found") message="perl is missing" ;;
  142:*) message="no answer within 2 s" ;;
  159:*) message="perl was killed by SIGSYS" ;;
  *) message="perl ended with exit code $exit_code: $out" ;;
esac

"$emit_record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "2" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "proc" \
  --verb "trace" \
  --target "own child" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stdout "$out" \
  --operation-arg "request" "PTRACE_ATTACH"
