#!/usr/bin/env bash
set -euo pipefail

# Reads the key that was planted in the home folder for this run. The token in it is recorded: it
# was made up outside, opens nothing, and shows there that the file was really read.
probe_name="fs_planted_key_read"
primary_capability_id="cap_fs_read_home_keys"
needs="targets"
effect="read:key"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

target="${HOME:-/HOME-is-not-set}/.ssh/id_ed25519"
printf -v command 'grep ^stream-token: %q' "$target"

status="error" errno="" message="" stderr="" token="" exit_code=0
if [[ -z ${FENCE_NONCE:-} ]]; then
  exit_code="" message="not attempted: it needs $needs, and without FENCE_NONCE no key is a planted one"
elif stderr="$( { : <"$target"; } 2>&1 )"; then
  while read -r word rest || [[ -n $word ]]; do
    if [[ $word == stream-token: ]]; then token="$rest"; fi
    word=""
  done <"$target"
  if [[ -n $token ]]; then
    status="success" message="the planted key was read"
  else
    message="a file is there, but no token in it: empty, masked, or another one"
  fi
else
  exit_code=$? message="${stderr##*: }"
  case "$stderr" in
    *": Permission denied") status="denied" errno="EACCES" ;;
    *": Operation not permitted") status="denied" errno="EPERM" ;;
    *": No such file or directory") errno="ENOENT" ;;
  esac
fi

"$emit_record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "1" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "fs" \
  --verb "read" \
  --target "$target" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stderr "$stderr" \
  ${token:+--payload-raw-field "token" "$token"} \
  --operation-arg "effect" "$effect"
