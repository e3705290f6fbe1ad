#!/usr/bin/env bash
set -euo pipefail

# Binds a TCP socket to a port below 1024 of 127.0.0.1: one that no service is assigned to, and
# the next one if it is taken.
probe_name="net_bind_privileged_port"
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
my $socket;
for my $port (4, 6, 8, 10, 12, 14, 16) {
  socket($socket, 2, 1, 0) or stop "failed socket";
  bind($socket, pack $in, 2, $port, 0x7f000001) and last;
  $port < 16 or stop "failed bind";
}
my (undef, $port) = unpack $in, getsockname $socket;
print $port && $port < 1024 ? "seen port $port" : "unseen";
'
printf -v command 'perl -e %q' "$program"

status="error" errno="" message="" exit_code=0
out="$(perl -e "$program" 2>&1)" || exit_code=$?
case "$exit_code:$out" in
  0:seen*) status="success" message="bound to a port below 1024" ;;
  0:unseen*) message="bind reported success but the socket has no such port" ;;
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
  --verb "bind" \
  --target "127.0.0.1, a port below 1024" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  --raw-exit-code "$exit_code" \
  --payload-stdout "$out" \
  --operation-arg "protocol" "tcp" \
  --operation-arg "port" "4 to 16, the unassigned ones"
