#!/usr/bin/env bash
set -euo pipefail

# Opens a raw ICMP socket and pings 127.0.0.1 with it. The echo confirms it; a socket that opens
# but may not send is `partial`.
probe_name="net_raw_socket_open"
primary_capability_id="cap_net_raw_socket"
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
alarm 1;
socket(my $raw, 2, 3, 1) or stop "failed socket";
my $id = $$ & 0xffff;
my $sum = 0x0800 + $id + 1;
$sum = ($sum & 0xffff) + ($sum >> 16);
my $echo = pack "CCnnn", 8, 0, ~$sum & 0xffff, $id, 1;
defined send($raw, $echo, 0, pack $in, 2, 0, 0x7f000001) or stop "failed send";
while (1) { # the socket also sees its own request, and the pings of others
  defined recv($raw, my $packet, 1500, 0) or stop "failed recv";
  my ($type, $code, undef, $from) = unpack "CCnn", substr $packet, 4 * (ord($packet) & 15);
  last if $type == 0 && $from == $id;
}
print "seen";
'
printf -v command 'perl -e %q' "$program"

status="error" errno="" message="" exit_code=0
out="$(perl -e "$program" 2>&1)" || exit_code=$?
case "$exit_code:$out" in
  0:seen*) status="success" message="the socket opened and its ping of 127.0.0.1 was answered" ;;
  "1:failed "*)
    errno="${out##* }" message="${out#failed }" message="${message% *} failed"
    case "$errno" in EACCES | EPERM | EROFS) status="denied" ;; esac
    if [[ $status == denied && $out != "failed socket "* ]]; then
      status="partial" message="the socket opened, but $message"
    fi
    ;;
  127:*": command not found") message="perl is missing" ;;
  142:*) message="no answer within 1 s" ;;
  159:*) message="perl was killed by SIGSYS" ;;
  *) message="perl ended with exit code $exit_code: $out" ;;
esac

"$emit_record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "1" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "net" \
  --verb "open" \
  --target "AF_INET SOCK_RAW IPPROTO_ICMP" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  --raw-exit-code "$exit_code" \
  --payload-stdout "$out" \
  --operation-arg "family" "inet" \
  --operation-arg "type" "raw" \
  --operation-arg "confirm" "echo on 127.0.0.1"
