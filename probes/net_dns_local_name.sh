#!/usr/bin/env bash
set -euo pipefail

# Asks the system's resolver library for localhost, which /etc/hosts answers. That shows the library
# at work and no name server: `partial`. Where the file does not name it, or is not what the library
# looks at first, a server might be asked, so nothing is attempted.
probe_name="net_dns_local_name"
primary_capability_id="cap_net_dns"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

known=""
# Whether it may be read, its opening tells: Landlock does not show in -r.
if { : </etc/hosts; } 2>/dev/null; then
  while read -r address names || [[ -n $address ]]; do
    names="${names%%#*}"
    if [[ $address == 127.0.0.1 && " ${names//$'\t'/ } " == *" localhost "* ]]; then known="yes"; fi
    address=""
  done </etc/hosts
fi
first="files" key="" source=""
if { : </etc/nsswitch.conf; } 2>/dev/null; then
  while read -r key source _ || [[ -n $key ]]; do
    if [[ $key == hosts: ]]; then first="$source"; fi
    key=""
  done </etc/nsswitch.conf
elif [[ -e /etc/nsswitch.conf ]]; then
  first="unreadable"
fi

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
if [[ -n $known && $first != files ]]; then
  out="unsure" exit_code=1
elif [[ -n $known ]]; then
  out="$(perl -e "$program" 2>&1)" || exit_code=$?
else
  out="unready" exit_code=1
fi
case "$exit_code:$out" in
  0:seen*) status="partial" message="localhost is 127.0.0.1, from /etc/hosts; no name server was asked" ;;
  0:unseen*) message="localhost resolved to other addresses than 127.0.0.1" ;;
  1:unsure) exit_code="" message="not attempted: nsswitch.conf does not begin with files, a name server might be asked" ;;
  1:unready) exit_code="" message="not attempted: no localhost in /etc/hosts, or not to be read; a name server might be asked" ;;
  1:unresolved*) message="localhost did not resolve: ${out#unresolved }" ;;
  "1:failed "*)
    errno="${out##* }" message="${out#failed }" message="${message% *} failed"
    case "$errno" in EACCES | EPERM | EROFS) status="denied" ;; esac
    ;;
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
  --verb "resolve" \
  --target "localhost" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stdout "$out" \
  --operation-arg "function" "gethostbyname" \
  --operation-arg "name_server" "not asked"
