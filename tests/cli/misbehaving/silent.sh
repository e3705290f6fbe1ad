#!/usr/bin/env bash
# Says nothing.
set -euo pipefail
probe_name="silent"
primary_capability_id="cap_fs_write_temp"
echo "nothing to say" >&2
