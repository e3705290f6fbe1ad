#!/usr/bin/env bash
set -euo pipefail

# Points a UDP socket at 2001:db8::1, an address reserved for documentation. Connecting a UDP socket
# sends no packet; it only asks policy and routing, which show themselves in the local address.
# Whether anything can be reached stays open: that much is `partial`.
probe_name="net_outbound_ipv6_literal"
primary_capability_id="cap_net_outbound_any"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

# shellcheck disable=SC2016 # perl expands these
program='
sub stop {
  my $n = $! + 0;
  my ($name) = eval q($! = $n; grep { $!{$_} } sort keys %!); # only now, because it loads Errno.pm
  print "$_[0] ", $name || $n;
  exit 1;
}
my %family = (linux => 10, darwin => 30, freebsd => 28);
my $af = $family{$^O} or exit print "unknown AF_INET6";
socket(my $socket, $af, 2, 0) or stop "failed socket";
my $in6 = ($^O eq "linux" ? "S" : "xC") . "nx4n8x4"; # sockaddr_in6
connect($socket, pack $in6, $af, 9, 0x2001, 0xdb8, 0, 0, 0, 0, 0, 1) or stop "failed connect";
my (undef, $port) = unpack $in6, getsockname $socket;
print $port ? "seen" : "unseen";
'
printf -v command 'perl -e %q' "$program"

status="error" errno="" message="" exit_code=0
out="$(perl -e "$program" 2>&1)" || exit_code=$?
case "$exit_code:$out" in
  0:seen*) status="partial" message="policy and routing let the socket be pointed there; no packet was sent" ;;
  0:unseen*) message="connect reported success but no local address was assigned" ;;
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
  --verb "connect" \
  --target "[2001:db8::1]:9" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  --raw-exit-code "$exit_code" \
  --payload-stdout "$out" \
  --operation-arg "protocol" "udp" \
  --operation-arg "packets" "none"
