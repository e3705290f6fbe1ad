#!/usr/bin/env bash
set -euo pipefail

# Asks the system's resolver library for localhost, a name that needs no name server.
probe_name="net_dns_local_name"
primary_capability_id="cap_net_dns"
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
my @entry = gethostbyname "localhost" or exit print "unresolved h_errno $?";
print grep({ $_ eq "\x7f\0\0\1" } @entry[4 .. $#entry]) ? "seen" : "unseen";
'
printf -v command 'perl -e %q' "$program"

status="error" errno="" message="" exit_code=0
out="$(perl -e "$program" 2>&1)" || exit_code=$?
case "$exit_code:$out" in
  0:seen*) status="success" message="localhost is 127.0.0.1" ;;
  0:unseen*) message="localhost resolved to other addresses than 127.0.0.1" ;;
  1:unresolved*) message="localhost did not resolve: ${out#unresolved }" ;;
  "1:failed "*)
    errno="${out##* }" message="${out#failed }" message="${message% *} failed"
    case "$errno" in EACCES | EPERM | EROFS) status="denied" ;; esac
    ;;
  127:*) message="perl is missing" ;;
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
  --verb "resolve" \
  --target "localhost" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  --raw-exit-code "$exit_code" \
  --payload-stdout "$out" \
  --operation-arg "function" "gethostbyname" \
  --operation-arg "name_server" "not needed"
