#!/usr/bin/env bash
set -euo pipefail

# Sends the nonce to an address by TCP, past every proxy.
probe_name="egress_tcp_address"
primary_capability_id="cap_net_outbound_any"
needs="stand-in"
effect="arrive:tcp"
helpers="${BASH_SOURCE[0]%/*}/../bin"

target="192.0.2.7:7"
words=(tcp "$target" "${FENCE_NONCE:-}")
printf -v command ' %q' "${words[@]}"

status="error" errno="" message="" out="" exit_code=0
if [[ -z ${FENCE_STAND_IN:-} || -z ${FENCE_NONCE:-} ]]; then
  exit_code="" message="not attempted: it needs a $needs, and there is no FENCE_STAND_IN"
else
  out="$("$helpers/reach" "${words[@]}" 2>&1)" || exit_code=$?
  message="$out"
  case "$exit_code:$out" in
    0:seen*) status="success" message="the expected answer came${out#seen}" ;;
    "1:failed "*) errno="${out##* }" ;;
  esac
  case "$errno" in EACCES | EPERM | EROFS) status="denied" ;; esac
fi

"$helpers/emit-record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "1" \
  --primary-capability-id "$primary_capability_id" \
  --command "reach$command" \
  --category "net" \
  --verb "connect" \
  --target "$target" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stdout "$out" \
  ${out:+--payload-raw-field "reach" "${out%% *}"} \
  --operation-arg "effect" "$effect"
