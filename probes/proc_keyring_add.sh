#!/usr/bin/env bash
set -euo pipefail

# Adds a key to the keyring of its own process and reads it back. That keyring goes when the
# process ends.
probe_name="proc_keyring_add"
primary_capability_id="cap_proc_keyrings"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

# shellcheck disable=SC2016 # perl expands these
program='
sub stop {
  my $n = $! + 0;
  my ($name) = eval q($! = $n; grep { $!{$_} } sort keys %!); # only now, because it loads Errno.pm
  print "$_[0] ", $name || $n;
  exit 1;
}
my ($add, $keyctl) = map { $_ + 0 } split " ", shift;
my ($type, $name, $payload, $seen) = ("user", "stream-probe", "stream probe", " " x 12);
my $key = syscall($add, $type, $name, $payload, 12, -2); # KEY_SPEC_PROCESS_KEYRING
$key >= 0 or stop "failed add_key";
my $length = syscall($keyctl, 11, $key, $seen, 12); # KEYCTL_READ
my $error = $! + 0;
syscall($keyctl, 9, $key, -2); # KEYCTL_UNLINK
if ($length < 0) { $! = $error; stop "failed keyctl" }
print $seen eq $payload ? "seen" : "unseen";
'
# System call numbers: add_key, keyctl.
case "$OSTYPE:$HOSTTYPE" in
  linux*:x86_64) calls="248 250" ;;
  linux*:aarch64) calls="217 219" ;;
  *) calls="" ;;
esac
printf -v command 'perl -e %q %q' "$program" "$calls"

status="error" errno="" message="" exit_code=0
if [[ -n $calls ]]; then
  out="$(perl -e "$program" "$calls" 2>&1)" || exit_code=$?
else
  out="unmeasured" exit_code=1
fi
case "$exit_code:$out" in
  0:seen*) status="success" message="the key was read back" ;;
  0:unseen*) message="the key holds something else than what was written" ;;
  "1:failed "*)
    errno="${out##* }" message="${out#failed }" message="${message% *} failed"
    case "$errno" in EACCES | EPERM | EROFS) status="denied" ;; esac
    if [[ $status == denied && $out == "failed keyctl "* ]]; then
      status="partial" message="the key was added, but it could not be read back: $message"
    fi
    ;;
  1:unmeasured) exit_code="" message="add_key is not measured on $OSTYPE $HOSTTYPE" ;;
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
  --verb "add_key" \
  --target "process keyring" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stdout "$out" \
  --operation-arg "type" "user" \
  --operation-arg "bytes" "12"
