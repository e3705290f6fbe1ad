#!/usr/bin/env bash
# Writes 1 GB to stderr; the record is still its own.
set -euo pipefail
probe_name="floods_stderr"
primary_capability_id="cap_fs_write_temp"
emit() {
  "${BASH_SOURCE[0]%/*}/../bin/emit-record" --run-mode "$FENCE_RUN_MODE" --probe-version 1 \
    --primary-capability-id "$primary_capability_id" --command : --category fs --verb write \
    --target "$TMPDIR" --probe-name "$probe_name" --status success "$@"
}
head -c 1000000000 /dev/zero >&2
emit
