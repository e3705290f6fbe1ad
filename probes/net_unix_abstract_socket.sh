#!/usr/bin/env bash
set -euo pipefail

# Connects to a Unix socket of its own in the abstract namespace, which no file permission guards,
# and sends it a word. Nothing outside listens: a scope that ends at the sandbox does not show.
probe_name="net_unix_abstract_socket"
primary_capability_id="cap_net_abstract_unix_socket"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

# shellcheck disable=SC2016 # perl expands these
program='
sub stop {
  my $n = $! + 0;
  my ($name) = eval q($! = $n; grep { $!{$_} } sort keys %!); # only now, because it loads Errno.pm
  print "$_[0] ", $name || $n;
  exit 1;
}
my $address = pack "Sxa*", 1, shift; # the NUL before the name makes it abstract
alarm 2;
socket(my $listener, 1, 1, 0) or stop "failed socket";
socket(my $client, 1, 1, 0) or stop "failed socket";
if (!bind($listener, $address) or !listen($listener, 1)) {
  my $error = $! + 0; # without a listener: what refuses the connection does so before it looks for one
  connect($client, $address) or $! != 1 && $! != 13 or stop "failed connect";
  $! = $error;
  stop "unready listener";
}
connect($client, $address) or stop "failed connect";
accept(my $server, $listener) or stop "unready accept";
syswrite($client, "ping") or stop "failed write";
defined sysread($server, my $ping, 4) or stop "failed read";
print $ping eq "ping" ? "seen" : "unseen";
'
name="stream-probe-$$-$RANDOM"
printf -v command 'perl -e %q %q' "$program" "$name"

status="error" errno="" message="" exit_code=0
if [[ $OSTYPE == linux* ]]; then
  out="$(perl -e "$program" "$name" 2>&1)" || exit_code=$?
else
  out="unmeasured" exit_code=1
fi
case "$exit_code:$out" in
  0:seen*) status="success" message="a listener of its own received what was sent to its abstract name" ;;
  0:unseen*) message="the connection was made but the bytes did not arrive" ;;
  "1:failed "*)
    errno="${out##* }" message="${out#failed }" message="${message% *} failed"
    case "$errno" in EACCES | EPERM | EROFS) status="denied" ;; esac
    ;;
  "1:unready "*) exit_code="" message="not attempted, no listener of its own: ${out#unready }" ;;
  1:unmeasured) exit_code="" message="abstract sockets are Linux only, not measured on $OSTYPE" ;;
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
  --verb "connect" \
  --target "@$name" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stdout "$out" \
  --operation-arg "family" "unix" \
  --operation-arg "namespace" "abstract" \
  --operation-arg "type" "stream" \
  --operation-arg "listener" "own"
