#!/usr/bin/env bash
set -euo pipefail

# Points a UDP socket at the first name server of /etc/resolv.conf. Connecting a UDP socket sends no
# packet; it only asks policy and routing, which show themselves in the local address.
# Whether the server answers stays open: that much is `partial`.
probe_name="net_dns_resolver_config"
primary_capability_id="cap_net_dns"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

server="" key="" value=""
# Whether it may be read, its opening tells: Landlock does not show in -r.
if { : </etc/resolv.conf; } 2>/dev/null; then
  while read -r key value _ || [[ -n $key ]]; do
    if [[ $key == nameserver ]]; then
      server="$value"
      break
    fi
  done </etc/resolv.conf
fi

# shellcheck disable=SC2016 # perl expands these
program='
sub stop {
  my $n = $! + 0;
  my ($name) = eval q($! = $n; grep { $!{$_} } sort keys %!); # only now, because it loads Errno.pm
  print "$_[0] ", $name || $n;
  exit 1;
}
my ($server) = shift =~ /^([^%]*)/;
my ($family, $address);
if ($server =~ /:/) {
  require Socket;
  $family = Socket::AF_INET6();
  my $bytes = Socket::inet_pton($family, $server) or exit print "unreadable";
  $address = Socket::pack_sockaddr_in6(53, $bytes);
} else {
  $family = 2;
  my @bytes = $server =~ /^(\d+)\.(\d+)\.(\d+)\.(\d+)$/ or exit print "unreadable";
  $address = pack +($^O eq "linux" ? "S" : "xC") . "nC4x8", 2, 53, @bytes;
}
socket(my $socket, $family, 2, 0) or stop "failed socket";
connect($socket, $address) or stop "failed connect";
my $port = unpack "xxn", getsockname $socket;
print $port ? "seen" : "unseen";
'
printf -v command 'perl -e %q %q' "$program" "$server"

status="error" errno="" message="" exit_code=0
out="$(perl -e "$program" "$server" 2>&1)" || exit_code=$?
case "$exit_code:$out" in
  0:seen*) status="partial" message="policy and routing let the socket be pointed there; no packet was sent" ;;
  0:unseen*) message="connect reported success but no local address was assigned" ;;
  1:unreadable) exit_code="" message="not attempted: no name server address in /etc/resolv.conf, or not to be read" ;;
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
  --probe-version "2" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "net" \
  --verb "connect" \
  --target "${server:-/etc/resolv.conf}" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stdout "$out" \
  --operation-arg "protocol" "udp" \
  --operation-arg "port" "53" \
  --operation-arg "packets" "none"
