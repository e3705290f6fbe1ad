#!/usr/bin/env bash
set -euo pipefail

# Mounts a tmpfs of one page on TMPDIR. It first tries to enter a mount namespace of its own, so
# that nobody else sees the mount; the kernel asks the same right for both. Where that is refused
# the mount is attempted all the same, because it alone is measured, and it is undone at once.
probe_name="proc_mount_tmpfs"
primary_capability_id="cap_proc_mount"
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
my ($unshare, $mount, $umount) = map { $_ + 0 } split " ", shift;
my $folder = $ENV{TMPDIR};
my ($source, $root, $type, $options) = ("none", "/", "tmpfs", "size=4k");
my ($before) = stat $folder or stop "unready stat";
my $private = syscall($unshare, 0x20000) == 0 # CLONE_NEWNS
  && syscall($mount, $source, $root, 0, 0x44000, 0) == 0; # MS_REC | MS_PRIVATE
my $mounted = syscall($mount, $source, $folder, $type, 6, $options) == 0; # MS_NOSUID | MS_NODEV
my $error = $! + 0;
my $seen = $mounted && (stat $folder)[0] != $before; # another device
syscall($umount, $folder, 2) if $mounted; # MNT_DETACH
if (!$mounted) { $! = $error; stop "failed mount" }
print $seen ? "seen" : "unseen", $private ? " in a private namespace" : " in the shared namespace";
'
# System call numbers: unshare, mount, umount2.
case "$OSTYPE:$HOSTTYPE" in
  linux*:x86_64) calls="272 165 166" ;;
  linux*:aarch64) calls="97 40 39" ;;
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
  0:seen*) status="success" message="the folder was on the new file system${out#seen}" ;;
  0:unseen*) message="mount reported success but the folder is on the same file system" ;;
  "1:failed "*)
    errno="${out##* }" message="${out#failed }" message="${message% *} failed"
    case "$errno" in EACCES | EPERM | EROFS) status="denied" ;; esac
    ;;
  "1:unready "*) exit_code="" message="not attempted: ${out#unready }" ;;
  1:unmeasured) exit_code="" message="mount is not measured on $OSTYPE $HOSTTYPE" ;;
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
  --verb "mount" \
  --target "$TMPDIR" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stdout "$out" \
  --operation-arg "type" "tmpfs" \
  --operation-arg "flags" "MS_NOSUID|MS_NODEV"
