#!/usr/bin/env bash
# Prints something that is no record.
set -euo pipefail
probe_name="noise"
primary_capability_id="cap_fs_write_temp"
echo "hello"
echo "chatty" >&2
