#!/usr/bin/env bash
set -euo pipefail

# Creates a BPF array of one element and reads that element. The array goes when the process ends.
probe_name="proc_bpf_syscall"
primary_capability_id="cap_proc_bpf"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

# shellcheck disable=SC2016 # perl expands these
program='
sub stop {
  my $n = $! + 0;
  my ($name) = eval q($! = $n; grep { $!{$_} } sort keys %!); # only now, because it loads Errno.pm
  print "$_[0] ", $name || $n;
  exit 1;
}
my $bpf = shift() + 0;
my $attributes = pack "L5x52", 2, 4, 4, 1, 0; # BPF_MAP_TYPE_ARRAY: key size, value size, elements, flags
my $map = syscall($bpf, 0, $attributes, 72); # BPF_MAP_CREATE
$map >= 0 or stop "failed bpf";
my ($key, $value) = (pack("L", 0), pack "L", $$);
$attributes = pack "Lx4P4P4x8", $map, $key, $value;
syscall($bpf, 1, $attributes, 32) == 0 or stop "failed bpf"; # BPF_MAP_LOOKUP_ELEM
print unpack("L", $value) == 0 ? "seen" : "unseen";
'
# System call number: bpf.
case "$OSTYPE:$HOSTTYPE" in
  linux*:x86_64) calls="321" ;;
  linux*:aarch64) calls="280" ;;
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
  0:seen*) status="success" message="the array exists and its element is zero" ;;
  0:unseen*) message="the array was created but its element is not zero" ;;
  "1:failed "*)
    errno="${out##* }" message="${out#failed }" message="${message% *} failed"
    case "$errno" in EACCES | EPERM | EROFS) status="denied" ;; esac
    ;;
  1:unmeasured) exit_code="" message="bpf is not measured on $OSTYPE $HOSTTYPE" ;;
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
  --verb "bpf" \
  --target "BPF_MAP_CREATE" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stdout "$out" \
  --operation-arg "command" "BPF_MAP_CREATE" \
  --operation-arg "map_type" "array"
