#!/usr/bin/env bash
set -euo pipefail

# Opens a POSIX message queue and sends a message through it. Its name is removed at once; the
# queue lives on until the process ends.
probe_name="ipc_posix_message_queue"
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
my ($open, $unlink, $send, $receive) = map { $_ + 0 } split " ", shift;
my $name = shift; # the C library takes the leading slash off, the kernel wants none
my $attributes = pack "q4x32", 0, 1, 64, 0; # one message of 64 bytes
my $queue = syscall($open, $name, 04302, 0600, $attributes); # O_RDWR | O_CREAT | O_EXCL | O_NONBLOCK
if ($queue < 0) { # Landlock makes the queue, and only then refuses to open it
  my $error = $! + 0;
  my $made = $error != 17 && syscall($unlink, $name) == 0; # EEXIST: of somebody else
  $! = $error;
  stop $made ? "failed mq_open, after it made the queue:" : "failed mq_open";
}
syscall($unlink, $name) == 0 or stop "failed mq_unlink";
my ($message, $seen) = ("stream probe", " " x 64);
syscall($send, $queue, $message, 12, 0, 0) == 0 or stop "failed mq_send";
my $length = syscall($receive, $queue, $seen, 64, 0, 0);
$length >= 0 or stop "failed mq_receive";
print substr($seen, 0, $length) eq $message ? "seen" : "unseen";
'
# System call numbers: mq_open, mq_unlink, mq_timedsend, mq_timedreceive.
case "$OSTYPE:$HOSTTYPE" in
  linux*:x86_64) calls="240 241 242 243" ;;
  linux*:aarch64) calls="180 181 182 183" ;;
  *) calls="" ;;
esac
name="stream-probe-$$-$RANDOM"
printf -v command 'perl -e %q %q %q' "$program" "$calls" "$name"

status="error" errno="" message="" exit_code=0
if [[ -n $calls ]]; then
  out="$(perl -e "$program" "$calls" "$name" 2>&1)" || exit_code=$?
else
  out="unmeasured" exit_code=1
fi
case "$exit_code:$out" in
  0:seen*) status="success" message="the message came out of the queue as it was sent" ;;
  0:unseen*) message="another message came out of the queue" ;;
  "1:failed "*)
    errno="${out##* }" message="${out#failed }" message="${message% *} failed"
    case "$errno" in EACCES | EPERM | EROFS) status="denied" ;; esac
    if [[ $out == *"made the queue: "* ]]; then message="mq_open failed, but only after it had made the queue; removed"; fi
    ;;
  1:unmeasured) exit_code="" message="mq_open is not measured on $OSTYPE $HOSTTYPE" ;;
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
  --target "/$name" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stdout "$out" \
  --operation-arg "messages" "1"
