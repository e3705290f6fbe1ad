#!/usr/bin/env bash
set -euo pipefail

# Opens the first file that exists of those where programs keep keys and tokens. Nothing of what is
# in it is recorded.
probe_name="fs_home_keys_read"
primary_capability_id="cap_fs_read_home_keys"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

home="${HOME:-/HOME-is-not-set}"
set -- "$home/.ssh/id_ed25519" "$home/.ssh/id_rsa" "$home/.ssh/id_ecdsa" \
  "$home/.aws/credentials" "$home/.config/gh/hosts.yml" "$home/.git-credentials" "$home/.netrc" \
  "$home/.npmrc" "$home/.pypirc" "$home/.docker/config.json" "$home/.kube/config" \
  "$home/.codex/auth.json" "$home/.claude/.credentials.json"
target=""
for file in "$@"; do
  if [[ -e $file ]]; then target="$file"; break; fi
done
# None is to be seen: the first one that is out of reach, and not absent, tells.
if [[ -z $target ]]; then
  for file in "$@"; do
    stderr="$( { : <"$file"; } 2>&1 )" || :
    case "$stderr" in
      *": No such file or directory" | *": Not a directory") ;;
      *) target="$file" && break ;;
    esac
  done
fi
target="${target:-$1}"
printf -v command ': <%q' "$target"

status="error" errno="" message="" exit_code=0
stderr="$( { : <"$target"; } 2>&1 )" || exit_code=$?
if [[ $exit_code -eq 0 ]]; then
  if IFS= read -r -d '' -n 1 _ <"$target"; then
    status="success" message="the file was opened and a byte read"
  else
    message="it was opened, but not a byte came: empty, or masked"
  fi
else
  case "$stderr" in
    *": Permission denied") status="denied" errno="EACCES" ;;
    *": Operation not permitted") status="denied" errno="EPERM" ;;
    *": Read-only file system") status="denied" errno="EROFS" ;;
    *": No such file or directory") errno="ENOENT" ;;
  esac
  message="${stderr##*: }"
  if [[ -z ${HOME:-} ]]; then
    message="not attempted: HOME is not set"
  elif [[ $errno == ENOENT ]]; then
    message="none of the $# known files is there"
  fi
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
  --raw-exit-code "$exit_code" \
  --payload-stderr "$stderr" \
  --payload-raw-field "content_recorded" "no" \
  --operation-arg "read_mode" "open" \
  --operation-arg-json "candidates" "$#"
