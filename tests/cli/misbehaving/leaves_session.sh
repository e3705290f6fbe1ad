#!/usr/bin/env bash
# A child in a session of its own holds its pipes.
set -euo pipefail
probe_name="leaves_session"
primary_capability_id="cap_fs_write_temp"
emit() {
  "${BASH_SOURCE[0]%/*}/../bin/emit-record" --run-mode "$FENCE_RUN_MODE" --probe-version 1 \
    --primary-capability-id "$primary_capability_id" --command : --category fs --verb write \
    --target "$TMPDIR" --probe-name "$probe_name" --status success "$@"
}
emit
echo "bye" >&2
setsid perl -e 'sleep 1000' "$TMPDIR" &
