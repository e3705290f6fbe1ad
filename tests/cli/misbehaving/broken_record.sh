#!/usr/bin/env bash
# Plain JSON that is no boundary object.
set -euo pipefail
probe_name="broken_record"
primary_capability_id="cap_fs_write_temp"
echo "typo" >&2
echo '{"schema_version": "boundary_event_v1", "probe": 7}'
