#!/usr/bin/env bash
set -euo pipefail

# Connects to a Unix socket of its own in TMPDIR and sends it a word. A plain file made there first
# tells a read-only folder from a refused socket.
probe_name="net_unix_socket_connect"
primary_capability_id="cap_net_unix_socket"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

# shellcheck disable=SC2016 # perl expands these
program='
sub stop {
  my $n = $! + 0;
  my ($name) = eval q($! = $n; grep { $!{$_} } sort keys %!); # only now, because it loads Errno.pm
  print "$_[0] ", $name || $n;
  exit 1;
}
my $un = $^O eq "linux" ? "Sa*x" : "xCa*x"; # sockaddr_un; its path has 100 bytes, so stay relative
my ($name, $file) = @ARGV;
alarm 2;
chdir $ENV{TMPDIR} or stop "unready chdir";
open(my $made, ">", $file) or stop "unready open";
END { unlink $file, $name if $name }
socket(my $listener, 1, 1, 0) or stop "failed socket";
socket(my $client, 1, 1, 0) or stop "failed socket";
if (!bind($listener, pack $un, 1, $name) or !listen($listener, 1)) {
  my $error = $! + 0; # without a listener: what refuses the connection refuses it to a plain file too
  connect($client, pack $un, 1, $file) or $! != 1 && $! != 13 or stop "failed connect";
  $! = $error;
  stop "unready listener";
}
connect($client, pack $un, 1, $name) or stop "failed connect";
accept(my $server, $listener) or stop "unready accept";
syswrite($client, "ping") or stop "failed write";
defined sysread($server, my $ping, 4) or stop "failed read";
print $ping eq "ping" ? "seen" : "unseen";
'
name="stream-probe-$$-$RANDOM"
printf -v command 'perl -e %q %q %q' "$program" "$name" "file-$name"

status="error" errno="" message="" exit_code=0
out="$(perl -e "$program" "$name" "file-$name" 2>&1)" || exit_code=$?
case "$exit_code:$out" in
  0:seen*) status="success" message="a listener of its own received what was sent to its socket file" ;;
  0:unseen*) message="the connection was made but the bytes did not arrive" ;;
  "1:failed "*)
    errno="${out##* }" message="${out#failed }" message="${message% *} failed"
    case "$errno" in EACCES | EPERM | EROFS) status="denied" ;; esac
    ;;
  "1:unready "*) exit_code="" message="not attempted: ${out#unready }" ;;
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
  --target "$TMPDIR/$name" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stdout "$out" \
  --operation-arg "family" "unix" \
  --operation-arg "type" "stream" \
  --operation-arg "listener" "own"
