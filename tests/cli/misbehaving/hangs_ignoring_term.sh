#!/usr/bin/env bash
# Neither it nor its child heeds SIGTERM.
set -euo pipefail
probe_name="hangs_ignoring_term"
primary_capability_id="cap_fs_write_temp"
trap "" TERM
echo "deaf" >&2
perl -e 'sleep 1000' "$TMPDIR"
perl -e 'sleep 1000' "$TMPDIR"
