#!/usr/bin/env bash
set -euo pipefail

# Sends SIGTERM to a child of its own and sees it die of it. The child ends by itself when the pipe
# closes.
probe_name="proc_signal_own_child"
primary_capability_id="cap_proc_fork_and_child_spawn"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

# shellcheck disable=SC2016 # perl expands these
program='
sub stop {
  my $n = $! + 0;
  my ($name) = eval q($! = $n; grep { $!{$_} } sort keys %!); # only now, because it loads Errno.pm
  print "$_[0] ", $name || $n;
  exit 1;
}
alarm 2;
$SIG{TERM} = "DEFAULT";
pipe(my $reader, my $writer) or stop "unready pipe";
defined(my $pid = fork) or stop "unready fork";
if (!$pid) { close $writer; sysread $reader, my $byte, 1; exit 0 }
my $sent = kill "TERM", $pid;
my $error = $! + 0;
close $writer;
waitpid $pid, 0;
if (!$sent) { $! = $error; stop "failed kill" }
print $? == 15 ? "seen" : "unseen status $?";
'
printf -v command 'perl -e %q' "$program"

status="error" errno="" message="" exit_code=0
out="$(perl -e "$program" 2>&1)" || exit_code=$?
case "$exit_code:$out" in
  0:seen*) status="success" message="the child died of the signal" ;;
  0:unseen*) message="kill reported success but the child did not die of the signal" ;;
  "1:failed "*)
    errno="${out##* }" message="${out#failed }" message="${message% *} failed"
    case "$errno" in EACCES | EPERM | EROFS) status="denied" ;; esac
    ;;
  "1:unready "*) exit_code="" message="not attempted: ${out#unready }" ;;
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
  --verb "signal" \
  --target "own child" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stdout "$out" \
  --operation-arg "signal" "TERM"
