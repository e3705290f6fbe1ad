#!/usr/bin/env bash
# Mode 0644.
set -euo pipefail
probe_name="not_executable"
primary_capability_id="cap_fs_write_temp"
