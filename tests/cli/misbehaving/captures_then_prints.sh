#!/usr/bin/env bash
# Keeps the helper's output in a variable and prints it later.
set -euo pipefail
probe_name="captures_then_prints"
primary_capability_id="cap_fs_write_temp"
emit() {
  "${BASH_SOURCE[0]%/*}/../bin/emit-record" --run-mode "$FENCE_RUN_MODE" --probe-version 1 \
    --primary-capability-id "$primary_capability_id" --command : --category fs --verb write \
    --target "$TMPDIR" --probe-name "$probe_name" --status success "$@"
}
frame="$(emit --message "kept, with a newline at its end
" 2>&1)"
: something else
printf '%s\n' "$frame"
