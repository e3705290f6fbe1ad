#!/usr/bin/env bash
set -euo pipefail

# Creates a private System V shared memory segment, writes to it, reads it back and removes it.
probe_name="ipc_sysv_shared_memory"
primary_capability_id="cap_ipc_shared_memory"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

# shellcheck disable=SC2016 # perl expands these
program='
sub stop {
  my $n = $! + 0;
  my ($name) = eval q($! = $n; grep { $!{$_} } sort keys %!); # only now, because it loads Errno.pm
  print "$_[0] ", $name || $n;
  exit 1;
}
$SIG{$_} = "IGNORE" for qw(HUP INT TERM); # it takes no time, and leaves nothing behind
my $id;
END { shmctl($id, 0, 0) if defined $id } # IPC_RMID
$id = shmget(0, 4096, 0600); # IPC_PRIVATE
defined $id or stop "failed shmget";
shmwrite($id, "stream probe", 0, 12) or stop "failed shmwrite";
shmread($id, my $seen, 0, 12) or stop "failed shmread";
print $seen eq "stream probe" ? "seen" : "unseen";
shmctl($id, 0, 0) ? undef $id : print " left $id";
'
printf -v command 'perl -e %q' "$program"

status="error" errno="" message="" exit_code=0
out="$(perl -e "$program" 2>&1)" || exit_code=$?
case "$exit_code:$out" in
  "0:seen left "*)
    status="partial" message="what was written to the segment was read back, but the segment ${out##* } could not be removed"
    ;;
  0:seen) status="success" message="what was written to the segment was read back" ;;
  0:unseen*) message="the segment holds something else than what was written" ;;
  "1:failed "*)
    errno="${out##* }" message="${out#failed }" message="${message% *} failed"
    case "$errno" in EACCES | EPERM | EROFS) status="denied" ;; esac
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
  --category "ipc" \
  --verb "create" \
  --target "System V shared memory, IPC_PRIVATE" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  --raw-exit-code "$exit_code" \
  --payload-stdout "$out" \
  --operation-arg "bytes" "4096"
