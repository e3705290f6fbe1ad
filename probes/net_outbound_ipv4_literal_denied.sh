#!/usr/bin/env bash
set -euo pipefail

# Opens a TCP connection to FENCE_OUTBOUND_TARGET (A.B.C.D:PORT), a listener outside the sandbox that
# the user names. Without one it tries the broadcast address: a policy that forbids connecting
# refuses the call, and where nothing forbids it, TCP of Linux itself does (ENETUNREACH), before a
# packet is sent. Elsewhere that would look like a denial, so nothing is attempted.
probe_name="net_outbound_ipv4_literal_denied"
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
my @target = $ENV{target} =~ /^(\d+)\.(\d+)\.(\d+)\.(\d+):(\d+)$/ or exit print "unready";
grep($_ > 255, @target[0 .. 3]) || $target[4] < 1 || $target[4] > 65535 and exit print "unready";
my $in = $^O eq "linux" ? "SnNx8" : "xCnNx8"; # sockaddr_in; Socket.pm would take longer than the rest
socket(my $socket, 2, 1, 0) or stop "failed socket";
fcntl($socket, 4, $^O eq "linux" ? 2048 : 4) or stop "unready fcntl"; # F_SETFL, O_NONBLOCK
if (!connect($socket, pack $in, 2, $target[4], unpack "N", pack "C4", @target)) {
  $!{EINPROGRESS} or stop "failed connect";
  vec(my $ready = "", fileno $socket, 1) = 1;
  select undef, $ready, undef, 0.7 or exit print "silent";
  getpeername $socket or sysread($socket, my $byte, 1) or stop "failed connect";
}
# From its own address, or to none: this machine has both ends.
my ($own, $peer) = map { (unpack $in, $_)[2] } getsockname $socket, getpeername $socket;
print $own == $peer || $peer >> 24 == 127 || !$target[0] ? "inside" : "seen";
'
target="${FENCE_OUTBOUND_TARGET:-255.255.255.255:9}"
printf -v command 'target=%q perl -e %q' "$target" "$program"

status="error" errno="" message="" exit_code=0
if [[ -n ${FENCE_OUTBOUND_TARGET:-} || $OSTYPE == linux* ]]; then
  out="$(target="$target" perl -e "$program" 2>&1)" || exit_code=$?
else
  out="untargeted" exit_code=1
fi
case "$exit_code:$out" in
  0:seen*)
    if [[ -n ${FENCE_OUTBOUND_TARGET:-} ]]; then
      status="success" message="the connection was accepted"
    else
      message="the call reported success, but nobody can answer at the broadcast address"
    fi
    ;;
  0:inside) status="partial" message="the connection was accepted, but the address is one of this machine" ;;
  1:untargeted) exit_code="" message="not attempted: there is no FENCE_OUTBOUND_TARGET" ;;
  1:silent) message="nothing refused the connection and nothing answered within 0.7 s" ;;
  "1:failed "*)
    errno="${out##* }" message="${out#failed }" message="${message% *} failed"
    case "$errno" in EACCES | EPERM | EROFS) status="denied" ;; esac
    if [[ $out == "failed connect ENETUNREACH" && -z ${FENCE_OUTBOUND_TARGET:-} ]]; then
      message="the call was not refused, nor can it succeed; without FENCE_OUTBOUND_TARGET nothing was sent"
    fi
    ;;
  1:unready) exit_code="" message="not attempted: FENCE_OUTBOUND_TARGET is not A.B.C.D:PORT" ;;
  "1:unready "*) exit_code="" message="not attempted: ${out#unready }" ;;
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
  --target "$target" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stdout "$out" \
  --operation-arg "protocol" "tcp" \
  --operation-arg "limit_seconds" "0.7"
