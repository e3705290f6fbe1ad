#!/usr/bin/env bash
set -euo pipefail

# Makes TMPDIR the root folder of a process of its own.
probe_name="proc_chroot"
primary_capability_id="cap_proc_chroot"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

# shellcheck disable=SC2016 # perl expands these
program='
sub stop {
  my $n = $! + 0;
  my ($name) = eval q($! = $n; grep { $!{$_} } sort keys %!); # only now, because it loads Errno.pm
  print "$_[0] ", $name || $n;
  exit 1;
}
my @inside = (stat $ENV{TMPDIR})[0, 1] or stop "unready stat";
chroot $ENV{TMPDIR} or stop "failed chroot";
print "@inside" eq join(" ", (stat "/")[0, 1]) ? "seen" : "unseen";
'
printf -v command 'perl -e %q' "$program"

status="error" errno="" message="" exit_code=0
out="$(perl -e "$program" 2>&1)" || exit_code=$?
case "$exit_code:$out" in
  0:seen*) status="success" message="the folder is the root of the process" ;;
  0:unseen*) message="chroot reported success but the root is the same" ;;
  "1:failed "*)
    errno="${out##* }" message="${out#failed }" message="${message% *} failed"
    case "$errno" in EACCES | EPERM | EROFS) status="denied" ;; esac
    ;;
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
  --category "proc" \
  --verb "chroot" \
  --target "$TMPDIR" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stdout "$out" \
  --operation-arg "folder" "TMPDIR"
