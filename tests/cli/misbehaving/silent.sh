#!/usr/bin/env bash
# Prints no record.
set -euo pipefail
probe_name="silent"
primary_capability_id="cap_fs_write_temp"
echo "nothing to add" >&2
