#!/usr/bin/env bash
set -euo pipefail

# Opens a packet socket. Protocol 0 means that it receives nothing, so no traffic is looked at.
probe_name="net_packet_socket_open"
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
socket(my $packet, 17, 3, 0) or stop "failed socket";
print unpack("S", getsockname $packet) == 17 ? "seen" : "unseen";
'
printf -v command 'perl -e %q' "$program"

status="error" errno="" message="" exit_code=0
if [[ $OSTYPE == linux* ]]; then
  out="$(perl -e "$program" 2>&1)" || exit_code=$?
else
  out="unmeasured" exit_code=1
fi
case "$exit_code:$out" in
  0:seen*) status="success" message="the packet socket opened" ;;
  0:unseen*) message="the socket opened but is not of the packet family" ;;
  "1:failed "*)
    errno="${out##* }" message="${out#failed }" message="${message% *} failed"
    case "$errno" in EACCES | EPERM | EROFS) status="denied" ;; esac
    ;;
  1:unmeasured) exit_code="" message="packet sockets are Linux only, not measured on $OSTYPE" ;;
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
  --verb "open" \
  --target "AF_PACKET SOCK_RAW" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stdout "$out" \
  --operation-arg "family" "packet" \
  --operation-arg "type" "raw" \
  --operation-arg "protocol" "0"
