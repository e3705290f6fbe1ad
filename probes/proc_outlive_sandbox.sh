#!/usr/bin/env bash
set -euo pipefail

# Starts a process in a session of its own, which holds nothing of what the probe has open, and ends.
# Whether the process outlives the sandbox shows outside, by its name: `partial` at most. It ends by
# itself after 3 s: some sandboxes wait for all of their processes.
probe_name="proc_outlive_sandbox"
primary_capability_id="cap_proc_outlive_sandbox"
needs="targets"
effect="outlive"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

# shellcheck disable=SC2016 # perl expands these
program='
use POSIX ();
sub stop { print "failed $_[0] ", { 1, "EPERM", 11, "EAGAIN", 12, "ENOMEM", 13, "EACCES" }->{$! + 0} || $! + 0; exit 1 }
pipe(my $reader, my $writer) or stop "pipe";
defined(my $pid = fork) or stop "fork";
if (!$pid) {
  POSIX::setsid;
  $0 = $ARGV[0];
  syswrite $writer, "seen";
  POSIX::close $_ for 0 .. 1023;
  sleep 3;
  exit;
}
close $writer;
alarm 2;
sysread $reader, my $word, 4;
print $word || "unseen";
'
name="n${FENCE_NONCE:-NONCE}"
printf -v command 'perl -e %q %q' "$program" "$name"

status="error" errno="" message="" out="" exit_code=0
if [[ -z ${FENCE_NONCE:-} ]]; then
  exit_code="" message="not attempted: it needs $needs, and there is no FENCE_NONCE"
else
  out="$(perl -e "$program" "$name" 2>&1)" || exit_code=$?
  case "$exit_code:$out" in
    0:seen) status="partial" message="a process was started that ends after the probe; how long it lives shows outside" ;;
    0:*) message="the process that was started said nothing" ;;
    "1:failed "*)
      errno="${out##* }" message="${out#failed }" message="${message% *} failed"
      case "$errno" in EACCES | EPERM | EROFS) status="denied" ;; esac
      ;;
    127:*": command not found") message="perl is missing" ;;
    *) message="perl ended with exit code $exit_code: $out" ;;
  esac
fi

"$emit_record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "1" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "proc" \
  --verb "spawn" \
  --target "$name" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stdout "$out" \
  --operation-arg "session" "own" \
  --operation-arg-json "limit_seconds" "3" \
  --operation-arg "effect" "$effect"
