#!/usr/bin/env bash
set -euo pipefail

# Connects to FENCE_OUTSIDE_SOCKET, a socket file with a listener outside the sandbox, sends it the
# nonce and waits for its answer.
probe_name="net_unix_socket_outside"
primary_capability_id="cap_net_unix_socket"
needs="targets"
effect="arrive:unix"
helpers="${BASH_SOURCE[0]%/*}/../bin"

words=(unix "${FENCE_OUTSIDE_SOCKET:-}" "${FENCE_NONCE:-}")
printf -v command '%q ' reach "${words[@]}"

status="error" errno="" message="" out="" exit_code=0
if [[ -z ${FENCE_OUTSIDE_SOCKET:-} || -z ${FENCE_NONCE:-} ]]; then
  exit_code="" message="not attempted: it needs $needs, and there is no FENCE_OUTSIDE_SOCKET"
else
  out="$("$helpers/reach" "${words[@]}" 2>&1)" || exit_code=$?
  message="$out"
  case "$exit_code:$out" in
    0:seen) status="success" message="the listener outside answered" ;;
    "1:failed "*) errno="${out##* }" ;;
  esac
  case "$errno" in EACCES | EPERM | EROFS) status="denied" ;; esac
fi

"$helpers/emit-record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "1" \
  --primary-capability-id "$primary_capability_id" \
  --command "${command% }" \
  --category "net" \
  --verb "connect" \
  --target "${FENCE_OUTSIDE_SOCKET:-FENCE_OUTSIDE_SOCKET}" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stdout "$out" \
  --operation-arg "listener" "outside" \
  --operation-arg "effect" "$effect"
