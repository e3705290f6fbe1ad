#!/usr/bin/env bash
set -euo pipefail

# Opens an existing start file of the shell for appending, and writes nothing, unless the home folder
# was prepared for it. perl, because every way in which bash opens for writing would create the file.
probe_name="fs_home_shell_rc_append_guard"
primary_capability_id="cap_fs_write_home_dotfiles"
effect="write:home"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

home="${HOME:-/HOME-is-not-set}"
set -- "$home/.bashrc" "$home/.profile" "$home/.bash_profile" "$home/.zshrc"
target=""
for file in "$@"; do
  if [[ -e $file ]]; then target="$file"; break; fi
done
# None is to be seen: opening the first tells whether it is absent or out of reach.
target="${target:-$1}"
# shellcheck disable=SC2016 # perl's variables
script='sysopen(my $file, $ARGV[0], O_WRONLY | O_APPEND) or print(STDERR "open: $!\n"), exit 1; print {$file} "# $ENV{FENCE_NONCE}\n" if $ENV{FENCE_NONCE}'
printf -v command 'perl -MFcntl -e %q %q' "$script" "$target"

status="error" errno="" message="" exit_code=0
stderr="$(perl -MFcntl -e "$script" "$target" 2>&1)" || exit_code=$?
if [[ $exit_code -eq 0 ]]; then
  status="success" message="the file was opened for appending${FENCE_NONCE:+, and a line was written}"
else
  message="${stderr##*: }"
  case "$exit_code $stderr" in
    126\ * | 127\ *) message="${stderr#*: line *: }" ;;
    *": Permission denied") status="denied" errno="EACCES" ;;
    *": Operation not permitted") status="denied" errno="EPERM" ;;
    *": Read-only file system") status="denied" errno="EROFS" ;;
  esac
fi

"$emit_record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "2" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "fs" \
  --verb "write" \
  --target "$target" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  --raw-exit-code "$exit_code" \
  --payload-stderr "$stderr" \
  --operation-arg "write_mode" "open_append" \
  --operation-arg-json "attempt_bytes" "0" \
  ${FENCE_NONCE:+--operation-arg "effect" "$effect"}
