#!/usr/bin/env bash
set -euo pipefail

# Asks the kernel over a netlink socket for the list of network interfaces, and reads the first one.
probe_name="net_netlink_route"
primary_capability_id="cap_net_netlink"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

# shellcheck disable=SC2016 # perl expands these
program='
sub stop {
  my $n = $! + 0;
  my ($name) = eval q($! = $n; grep { $!{$_} } sort keys %!); # only now, because it loads Errno.pm
  print "$_[0] ", $name || $n;
  exit 1;
}
alarm 2;
socket(my $route, 16, 3, 0) or stop "failed socket";
bind($route, pack "SxxLL", 16, 0, 0) or stop "failed bind";
# nlmsghdr: RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP; then an empty ifinfomsg
my $request = pack "LSSLLx16", 32, 18, 0x301, 1, 0;
defined send($route, $request, 0, pack "SxxLL", 16, 0, 0) or stop "failed send";
defined recv($route, my $answer, 65536, 0) or stop "failed recv";
my (undef, $type, undef, $sequence, undef, $error) = unpack "LSSLLl", $answer;
if ($type == 2 && $error) { $! = -$error; stop "failed RTM_GETLINK" }
print $type == 16 && $sequence == 1 ? "seen" : "unseen type $type";
'
printf -v command 'perl -e %q' "$program"

status="error" errno="" message="" exit_code=0
if [[ $OSTYPE == linux* ]]; then
  out="$(perl -e "$program" 2>&1)" || exit_code=$?
else
  out="unmeasured" exit_code=1
fi
case "$exit_code:$out" in
  0:seen*) status="success" message="the kernel described a network interface" ;;
  0:unseen*) message="the kernel answered something other than an interface" ;;
  "1:failed "*)
    errno="${out##* }" message="${out#failed }" message="${message% *} failed"
    case "$errno" in EACCES | EPERM | EROFS) status="denied" ;; esac
    ;;
  1:unmeasured) exit_code="" message="netlink sockets are Linux only, not measured on $OSTYPE" ;;
  127:*": command not found") message="perl is missing" ;;
  142:*) message="no answer within 2 s" ;;
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
  --verb "query" \
  --target "NETLINK_ROUTE" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stdout "$out" \
  --operation-arg "family" "netlink" \
  --operation-arg "request" "RTM_GETLINK"
