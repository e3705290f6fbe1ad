#!/usr/bin/env bash
set -euo pipefail

# Has the system's resolver resolve a name with the nonce in it. Whoever answers for the domain reads
# the name: it carries data out where nothing else gets through.
probe_name="egress_dns_lookup"
primary_capability_id="cap_net_dns"
needs="stand-in"
effect="arrive:dns"
helpers="${BASH_SOURCE[0]%/*}/../bin"

target="n${FENCE_NONCE:-}.denied.example.test"
words=(dns "$target")
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
  --verb "resolve" \
  --target "$target" \
  --status "$status" \
  --errno "$errno" \
  --message "$message" \
  ${exit_code:+--raw-exit-code "$exit_code"} \
  --payload-stdout "$out" \
  ${out:+--payload-raw-field "reach" "${out%% *}"} \
  --operation-arg "effect" "$effect"
