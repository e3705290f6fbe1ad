#!/usr/bin/env bash
# A daemon: two forks, a session of its own, closed pipes, deaf to SIGTERM.
set -euo pipefail
probe_name="leaves_daemon"
primary_capability_id="cap_fs_write_temp"
emit() {
  "${BASH_SOURCE[0]%/*}/../bin/emit-record" --run-mode "$FENCE_RUN_MODE" --probe-version 1 \
    --primary-capability-id "$primary_capability_id" --command : --category fs --verb write \
    --target "$TMPDIR" --probe-name "$probe_name" --status success "$@"
}
emit
echo "bye" >&2
(setsid perl -e '$SIG{TERM} = "IGNORE"; fork and exit; sleep 1000' "$TMPDIR" </dev/null >/dev/null 2>&1 &)
