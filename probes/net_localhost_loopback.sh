#!/usr/bin/env bash
set -euo pipefail

# Exchanges a word each way over TCP between two sockets of one process on 127.0.0.1.
probe_name="net_localhost_loopback"
primary_capability_id="cap_net_localhost_only"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

# shellcheck disable=SC2016 # perl expands these
program='
sub stop {
  my $n = $! + 0;
  my ($name) = eval q($! = $n; grep { $!{$_} } sort keys %!); # only now, because it loads Errno.pm
  print "$_[0] ", $name || $n;
  exit 1;
}
my $in = $^O eq "linux" ? "SnNx8" : "xCnNx8"; # sockaddr_in; Socket.pm would take longer than the rest
alarm 2;
socket(my $listener, 2, 1, 0) or stop "failed socket";
socket(my $client, 2, 1, 0) or stop "failed socket";
if (!bind($listener, pack $in, 2, 0, 0x7f000001) or !listen($listener, 1)) {
  my $error = $! + 0; # without a listener: what refuses the connection does so before it looks for one
  connect($client, pack $in, 2, 9, 0x7f000001) or $! != 1 && $! != 13 or stop "failed connect";
  $! = $error;
  stop "unready listener";
}
connect($client, getsockname $listener) or stop "failed connect";
accept(my $server, $listener) or stop "unready accept";
syswrite($client, "ping") or stop "failed write";
defined sysread($server, my $ping, 4) or stop "failed read";
syswrite($server, "pong") or stop "failed write";
defined sysread($client, my $pong, 4) or stop "failed read";
print "$ping $pong" eq "ping pong" ? "seen" : "unseen";
'
printf -v command 'perl -e %q' "$program"

status="error" errno="" message="" exit_code=0
out="$(perl -e "$program" 2>&1)" || exit_code=$?
case "$exit_code:$out" in
  0:seen*) status="success" message="both sides of a connection to a listener of its own received what the other sent" ;;
  0:unseen*) message="the connection was made but the bytes did not arrive" ;;
  "1:failed "*)
    errno="${out##* }" message="${out#failed }" message="${message% *} failed"
    case "$errno" in EACCES | EPERM | EROFS) status="denied" ;; esac
    ;;
  "1:unready "*) exit_code="" message="not attempted, no listener of its own: ${out#unready }" ;;
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
  --category "net" \
  --verb "connect" \
  --target "127.0.0.1" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stdout "$out" \
  --operation-arg "protocol" "tcp" \
  --operation-arg "port" "ephemeral" \
  --operation-arg "listener" "own"
