#!/usr/bin/env bash
# What does a read-only bubblewrap sandbox take away? One line for each probe whose result
# differs: probe, result without, result inside.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Exit 1 means that a probe failed, which its record tells; anything else ends us.
measure() { "$@" || [[ $? -eq 1 ]]; }
results() { jq -r '[.probe.id, .result.observed_result] | @tsv' | sort; }

measure stream matrix "$@" | results >"$scratch/plain"
measure bwrap --ro-bind / / --dev /dev --proc /proc --unshare-pid --die-with-parent \
  stream matrix "$@" | results >"$scratch/inside"

join -t $'\t' "$scratch/plain" "$scratch/inside" | awk -F '\t' '$2 != $3'
