#!/usr/bin/env bash
# Prints something in addition to its record.
set -euo pipefail
probe_name="noise_and_record"
primary_capability_id="cap_fs_write_temp"
emit() {
  "${BASH_SOURCE[0]%/*}/../bin/emit-record" --run-mode "$FENCE_RUN_MODE" --probe-version 1 \
    --primary-capability-id "$primary_capability_id" --command : --category fs --verb write \
    --target "$TMPDIR" --probe-name "$probe_name" --status success "$@"
}
echo "hello"
emit
echo "chatty" >&2
