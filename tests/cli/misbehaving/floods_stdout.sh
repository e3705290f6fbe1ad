#!/usr/bin/env bash
# Writes 1 GB to stdout.
set -euo pipefail
probe_name="floods_stdout"
primary_capability_id="cap_fs_write_temp"
emit() {
  "${BASH_SOURCE[0]%/*}/../bin/emit-record" --run-mode "$FENCE_RUN_MODE" --probe-version 1 \
    --primary-capability-id "$primary_capability_id" --command : --category fs --verb write \
    --target "$TMPDIR" --probe-name "$probe_name" --status success "$@"
}
echo "before the flood" >&2
emit
head -c 1000000000 /dev/zero
