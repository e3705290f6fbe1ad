#!/usr/bin/env bash
set -euo pipefail

# Moves a process of its own into a new user namespace and maps its user to root there. A namespace
# without the map is `partial`.
probe_name="proc_user_namespace_create"
primary_capability_id="cap_proc_user_namespaces"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

# shellcheck disable=SC2016 # perl expands these
program='
sub stop {
  my $n = $! + 0;
  my ($name) = eval q($! = $n; grep { $!{$_} } sort keys %!); # only now, because it loads Errno.pm
  print "$_[0] ", $name || $n;
  exit 1;
}
my $unshare = shift() + 0;
my $uid = $>;
my $before = readlink "/proc/self/ns/user" or stop "unready readlink";
syscall($unshare, 0x10000000) == 0 or stop "failed unshare"; # CLONE_NEWUSER
my $after = readlink "/proc/self/ns/user" or stop "unready readlink";
my $mapped = open(MAP, ">", "/proc/self/uid_map") && syswrite(MAP, "0 $uid 1");
print $before ne $after ? "seen" : "unseen", $mapped ? " uid_map written" : " uid_map refused";
'
# System call number: unshare.
case "$OSTYPE:$HOSTTYPE" in
  linux*:x86_64) calls="272" ;;
  linux*:aarch64) calls="97" ;;
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
  0:"seen uid_map written")
    status="success" message="the process is in a new user namespace and root there"
    ;;
  0:seen*) status="partial" message="the process is in a new user namespace, but its id map was refused" ;;
  0:unseen*) message="unshare reported success but the namespace is the same" ;;
  "1:failed "*)
    errno="${out##* }" message="${out#failed }" message="${message% *} failed"
    case "$errno" in EACCES | EPERM | EROFS) status="denied" ;; esac
    ;;
  "1:unready "*) exit_code="" message="not attempted: ${out#unready }" ;;
  1:unmeasured) exit_code="" message="unshare is not measured on $OSTYPE $HOSTTYPE" ;;
  127:*": command not found") message="perl is missing" ;;
  159:*) message="perl was killed by SIGSYS" ;;
  *) message="perl ended with exit code $exit_code: $out" ;;
esac
uid_map="not tried"
[[ $out != *" uid_map "* ]] || uid_map="${out##* }"

"$emit_record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "2" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "proc" \
  --verb "unshare" \
  --target "CLONE_NEWUSER" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stdout "$out" \
  --payload-raw-field "uid_map" "$uid_map" \
  --operation-arg "flags" "CLONE_NEWUSER"
