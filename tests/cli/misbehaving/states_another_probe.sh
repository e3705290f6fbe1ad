#!/usr/bin/env bash
# Its record names another probe.
set -euo pipefail
probe_name="states_another_probe"
primary_capability_id="cap_fs_write_temp"
emit() {
  "${BASH_SOURCE[0]%/*}/../bin/emit-record" --run-mode "$FENCE_RUN_MODE" --probe-version 1 \
    --primary-capability-id "$primary_capability_id" --command : --category fs --verb write \
    --target "$TMPDIR" --probe-name "$probe_name" --status success "$@"
}
echo "liar" >&2
emit --probe-name exits_3
