#!/usr/bin/env bash
# Is still there when its time is over.
set -euo pipefail
probe_name="hangs"
primary_capability_id="cap_fs_write_temp"
emit() {
  "${BASH_SOURCE[0]%/*}/../bin/emit-record" --run-mode "$FENCE_RUN_MODE" --probe-version 1 \
    --primary-capability-id "$primary_capability_id" --command : --category fs --verb write \
    --target "$TMPDIR" --probe-name "$probe_name" --status success "$@"
}
emit
echo "going to sleep" >&2
exec perl -e 'sleep 1000' "$TMPDIR"
