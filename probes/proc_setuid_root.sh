#!/usr/bin/env bash
set -euo pipefail

# Changes the user of a process of its own: an ordinary user tries to become root, and root tries
# to become the user 65534, which needs the same right.
probe_name="proc_setuid_root"
primary_capability_id="cap_proc_setuid"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

to=0
[[ $EUID -ne 0 ]] || to=65534

# shellcheck disable=SC2016 # perl expands these
program='
sub stop {
  my $n = $! + 0;
  my ($name) = eval q($! = $n; grep { $!{$_} } sort keys %!); # only now, because it loads Errno.pm
  print "$_[0] ", $name || $n;
  exit 1;
}
my $to = shift() + 0;
$! = 0;
($<, $>) = ($to, $to); # one setresuid or setreuid
$< == $to && $> == $to or stop "failed setuid";
print "seen";
'
printf -v command 'perl -e %q %q' "$program" "$to"

status="error" errno="" message="" exit_code=0
out="$(perl -e "$program" "$to" 2>&1)" || exit_code=$?
case "$exit_code:$out" in
  0:seen*) status="success" message="uid $EUID became uid $to" ;;
  "1:failed "*)
    errno="${out##* }" message="${out#failed }" message="${message% *} failed"
    case "$errno" in EACCES | EPERM | EROFS) status="denied" ;; esac
    [[ $errno != EINVAL ]] || message="uid $to does not exist in this user namespace"
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
  --category "proc" \
  --verb "setuid" \
  --target "uid $to" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  --raw-exit-code "$exit_code" \
  --payload-stdout "$out" \
  --operation-arg "uid_before" "$EUID" \
  --operation-arg "uid_after" "$to"
