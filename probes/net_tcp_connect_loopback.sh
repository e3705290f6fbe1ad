#!/usr/bin/env bash
set -euo pipefail

# Lets bash connect to a listener on 127.0.0.1 and read what it sends. Where no listener can be made
# the connection is attempted all the same, to port 9: a policy that refuses it says so before
# anybody looks for a listener.
probe_name="net_tcp_connect_loopback"
primary_capability_id="cap_net_tcp_connect"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

# Prints its pid and port, sends one line to whoever connects, and ends.
# shellcheck disable=SC2016 # perl expands these
program='
my $in = $^O eq "linux" ? "SnNx8" : "xCnNx8"; # sockaddr_in
alarm 3;
$| = 1;
socket(my $listener, 2, 1, 0) or exit print "- - $!\n";
bind($listener, pack $in, 2, 0, 0x7f000001) && listen($listener, 1) or exit print "- - $!\n";
print "$$ ", (unpack $in, getsockname $listener)[1], "\n";
accept(my $client, $listener) or exit;
syswrite $client, "stream probe\n";
'
listener="" port="" reason=""
# bash hands the output of the listener over by /dev/fd, which needs /proc.
if [[ -d /dev/fd ]]; then
  exec 3< <(perl -e "$program" 2>/dev/null || :)
else
  exec 3< /dev/null
  listener="-" reason="/dev/fd is missing"
fi
[[ $listener == - ]] || read -r listener port reason <&3 || :
# The pipe ends when the listener is gone, the shell that ran it a moment later.
end_listener() {
  [[ $listener != [0-9]* ]] || kill "$listener" 2>/dev/null || :
  read -r _ <&3 || :
  [[ -z ${!:-} ]] || wait "$!" 2>/dev/null || :
}
trap end_listener EXIT
[[ $port == [0-9]* ]] || port=9
printf -v command 'read -r line <>/dev/tcp/127.0.0.1/%s' "$port"

status="error" errno="" message="" exit_code=0
out="$({
  { read -r -t 2 line <&4 && printf %s "$line"; } 4<>"/dev/tcp/127.0.0.1/$port"
} 2>&1)" || exit_code=$?
case "$exit_code:$out" in
  0:"stream probe") status="success" message="the line of a listener of its own arrived" ;;
  0:*) message="the connection was made but another line arrived" ;;
  *": Permission denied") status="denied" errno="EACCES" message="Permission denied" ;;
  *": Operation not permitted") status="denied" errno="EPERM" message="Operation not permitted" ;;
  *": Connection refused") errno="ECONNREFUSED" message="Connection refused" ;;
  *": Network is unreachable") errno="ENETUNREACH" message="Network is unreachable" ;;
  *:) message="the connection was made but no line arrived within 2 s" ;;
  *) message="${out##*: }" ;;
esac
if [[ -z $listener ]]; then
  message="$message (no listener: perl is missing)"
elif [[ $listener == - ]]; then
  message="$message (no listener: $reason)"
fi

"$emit_record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "1" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "net" \
  --verb "connect" \
  --target "127.0.0.1" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  --raw-exit-code "$exit_code" \
  --payload-stdout "$out" \
  --operation-arg "protocol" "tcp" \
  --operation-arg "client" "bash /dev/tcp" \
  --operation-arg "listener" "own"
