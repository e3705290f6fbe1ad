#!/usr/bin/env bash
# What does a read-only bubblewrap sandbox take away? One line for each probe whose result
# differs: probe, result without, result inside.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

results() { jq -r '[.probe.id, .result.observed_result] | @tsv' | sort; }

stream matrix "$@" 2>/dev/null | results >"$scratch/plain"
bwrap --ro-bind / / --dev /dev --proc /proc --unshare-pid --die-with-parent \
  stream matrix "$@" 2>/dev/null | results >"$scratch/inside"

join -t $'\t' "$scratch/plain" "$scratch/inside" | awk -F '\t' '$2 != $3'
