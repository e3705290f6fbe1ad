#!/usr/bin/env bash
set -euo pipefail

# Sends a datagram to a socket on 127.0.0.1, which sends one back to where it came from.
probe_name="net_localhost_udp_echo"
primary_capability_id="cap_net_udp"
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
socket(my $server, 2, 2, 0) or stop "failed socket";
socket(my $client, 2, 2, 0) or stop "failed socket";
if (!bind($server, pack $in, 2, 0, 0x7f000001)) {
  my $error = $! + 0; # without a receiver: what refuses the datagram does so before it looks for one
  send($client, "ping", 0, pack $in, 2, 9, 0x7f000001) or $! != 1 && $! != 13 or stop "failed send";
  $! = $error;
  stop "unready receiver";
}
defined send($client, "ping", 0, getsockname $server) or stop "failed send";
defined(my $from = recv($server, my $ping, 16, 0)) or stop "failed recv";
defined send($server, "pong", 0, $from) or stop "failed send";
defined recv($client, my $pong, 16, 0) or stop "failed recv";
print "$ping $pong" eq "ping pong" ? "seen" : "unseen";
'
printf -v command 'perl -e %q' "$program"

status="error" errno="" message="" exit_code=0
out="$(perl -e "$program" 2>&1)" || exit_code=$?
case "$exit_code:$out" in
  0:seen*) status="success" message="a datagram to a socket of its own and the answer arrived" ;;
  0:unseen*) message="the datagrams arrived with other contents" ;;
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
  --verb "send" \
  --target "127.0.0.1" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stdout "$out" \
  --operation-arg "protocol" "udp" \
  --operation-arg "port" "ephemeral" \
  --operation-arg "listener" "own"
