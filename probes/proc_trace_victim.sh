#!/usr/bin/env bash
set -euo pipefail

# Attaches to FENCE_VICTIM_PID, a process outside the sandbox, with ptrace, sees it stop, and lets it
# go with SIGUSR2, which only a tracer can do like this. The process reports there that it came.
probe_name="proc_trace_victim"
primary_capability_id="cap_proc_trace_foreign"
needs="targets"
effect="trace:victim"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

# shellcheck disable=SC2016 # perl expands these
program='
sub stop {
  my $n = $! + 0;
  my ($name) = eval q($! = $n; grep { $!{$_} } sort keys %!); # only now, because it loads Errno.pm
  print "$_[0] ", $name || $n;
  exit 1;
}
my ($pid, $ptrace) = map $_ + 0, @ARGV;
alarm 2;
# In a pid namespace of its own the number may be that of another process.
if (open my $environ, "<", "/proc/$pid/environ") {
  local $/;
  "\0$_" =~ /\0STREAM_TOKEN=/ or exit !print "other" for scalar <$environ>;
}
syscall($ptrace, 16, $pid, 0, 0) == 0 or stop "failed ptrace"; # PTRACE_ATTACH
waitpid($pid, 0) == $pid or stop "unseen waitpid"; # it has stopped
syscall($ptrace, 17, $pid, 0, 12) == 0 or stop "unseen ptrace"; # PTRACE_DETACH, SIGUSR2
print "seen";
'
# System call number: ptrace.
case "$OSTYPE:$HOSTTYPE" in
  linux*:x86_64) calls="101" ;;
  linux*:aarch64) calls="117" ;;
  *) calls="" ;;
esac
pid="${FENCE_VICTIM_PID:-}"
printf -v command 'perl -e %q %q %q' "$program" "$pid" "$calls"

status="error" errno="" message="" out="" exit_code=0
if [[ -z $pid ]]; then
  exit_code="" message="not attempted: it needs $needs, and there is no FENCE_VICTIM_PID"
elif [[ -z $calls ]]; then
  exit_code="" message="ptrace is not measured on $OSTYPE $HOSTTYPE"
else
  out="$(perl -e "$program" "$pid" "$calls" 2>&1)" || exit_code=$?
  case "$exit_code:$out" in
    0:seen) status="success" message="the process stopped for its tracer, which let it go with SIGUSR2" ;;
    0:other) exit_code="" message="not attempted: the process of that number is another one" ;;
    "1:failed "*)
      errno="${out##* }" message="ptrace failed"
      case "$errno" in EACCES | EPERM | EROFS) status="denied" ;; esac
      ;;
    127:*": command not found") message="perl is missing" ;;
    142:*) message="no answer within 2 s" ;;
    159:*) message="perl was killed by SIGSYS" ;;
    *) message="perl ended with exit code $exit_code: $out" ;;
  esac
fi

"$emit_record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "1" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "proc" \
  --verb "trace" \
  --target "pid ${pid:-of FENCE_VICTIM_PID}" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stdout "$out" \
  --operation-arg "request" "PTRACE_ATTACH" \
  --operation-arg "effect" "$effect"
