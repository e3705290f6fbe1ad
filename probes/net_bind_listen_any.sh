#!/usr/bin/env bash
set -euo pipefail

# Binds a TCP socket to any free port of 127.0.0.1 and listens on it. The kernel shows the port and
# that the socket accepts connections; whether a client gets through is for other probes to tell.
probe_name="net_bind_listen_any"
primary_capability_id="cap_net_bind_listen"
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
socket(my $listener, 2, 1, 0) or stop "failed socket";
bind($listener, pack $in, 2, 0, 0x7f000001) or stop "failed bind";
listen($listener, 1) or stop "failed listen";
my (undef, $port, $address) = unpack $in, getsockname $listener;
my @accepts = $^O eq "linux" ? (1, 30) : (0xffff, 2); # SOL_SOCKET, SO_ACCEPTCONN
my $listens = getsockopt($listener, $accepts[0], $accepts[1]) or stop "failed getsockopt";
print $port && $address == 0x7f000001 && unpack("i", $listens) ? "seen" : "unseen";
'
printf -v command 'perl -e %q' "$program"

status="error" errno="" message="" exit_code=0
out="$(perl -e "$program" 2>&1)" || exit_code=$?
case "$exit_code:$out" in
  0:seen*) status="success" message="the socket listens on 127.0.0.1 with a port of its own" ;;
  0:unseen*) message="bind and listen reported success but the socket does not listen" ;;
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
  --category "net" \
  --verb "listen" \
  --target "127.0.0.1:0" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  --raw-exit-code "$exit_code" \
  --payload-stdout "$out" \
  --operation-arg "protocol" "tcp" \
  --operation-arg "port" "ephemeral"
