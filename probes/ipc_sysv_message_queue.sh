#!/usr/bin/env bash
set -euo pipefail

# Creates a private System V message queue, sends a message through it and removes it.
probe_name="ipc_sysv_message_queue"
primary_capability_id="cap_ipc_message_queue"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

# shellcheck disable=SC2016 # perl expands these
program='
sub stop {
  my $n = $! + 0;
  my ($name) = eval q($! = $n; grep { $!{$_} } sort keys %!); # only now, because it loads Errno.pm
  print "$_[0] ", $name || $n;
  exit 1;
}
$SIG{$_} = "IGNORE" for qw(HUP INT TERM); # it takes no time, and leaves nothing behind
my $id;
END { msgctl($id, 0, 0) if defined $id } # IPC_RMID
$id = msgget(0, 0600); # IPC_PRIVATE
defined $id or stop "failed msgget";
msgsnd($id, pack("l! a*", 1, "stream probe"), 04000) or stop "failed msgsnd"; # IPC_NOWAIT
defined msgrcv($id, my $message, 64, 0, 04000) or stop "failed msgrcv";
print $message eq pack("l! a*", 1, "stream probe") ? "seen" : "unseen";
msgctl($id, 0, 0) ? undef $id : print " left $id";
'
printf -v command 'perl -e %q' "$program"

status="error" errno="" message="" exit_code=0
out="$(perl -e "$program" 2>&1)" || exit_code=$?
case "$exit_code:$out" in
  "0:seen left "*)
    status="partial" message="the message came out of the queue as it was sent, but the queue ${out##* } could not be removed"
    ;;
  0:seen) status="success" message="the message came out of the queue as it was sent" ;;
  0:unseen*) message="another message came out of the queue" ;;
  "1:failed "*)
    errno="${out##* }" message="${out#failed }" message="${message% *} failed"
    case "$errno" in EACCES | EPERM | EROFS) status="denied" ;; esac
    ;;
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
  --category "ipc" \
  --verb "create" \
  --target "System V message queue, IPC_PRIVATE" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  --raw-exit-code "$exit_code" \
  --payload-stdout "$out" \
  --operation-arg "messages" "1"
