#!/usr/bin/env bash
# Leaves a folder in TMPDIR that nobody may enter.
set -euo pipefail
probe_name="locks_its_tmpdir"
primary_capability_id="cap_fs_write_temp"
emit() {
  "${BASH_SOURCE[0]%/*}/../bin/emit-record" --run-mode "$FENCE_RUN_MODE" --probe-version 1 \
    --primary-capability-id "$primary_capability_id" --command : --category fs --verb write \
    --target "$TMPDIR" --probe-name "$probe_name" --status success "$@"
}
mkdir -p "$TMPDIR/a/b"
: >"$TMPDIR/a/b/c"
chmod 0 "$TMPDIR/a/b" "$TMPDIR/a"
chmod 0 "$TMPDIR"
emit
