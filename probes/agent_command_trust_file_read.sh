#!/usr/bin/env bash
set -euo pipefail

# Opens the first file that exists of those where agents keep the commands that they trust. Nothing
# of what is in it is recorded.
probe_name="agent_command_trust_file_read"
primary_capability_id="cap_agent_command_trust_list"
emit_record="${BASH_SOURCE[0]%/*}/../bin/emit-record"

home="${HOME:-/HOME-is-not-set}"
set -- "$home/.config/codex/trust-list.json" "${CODEX_HOME:-$home/.codex}/rules/default.rules" \
  "${CODEX_HOME:-$home/.codex}/config.toml" "${CLAUDE_CONFIG_DIR:-$home/.claude}/settings.json" \
  "$FENCE_WORKSPACE_ROOT/.claude/settings.local.json" "$FENCE_WORKSPACE_ROOT/.claude/settings.json"
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
    *": No such file or directory") status="partial" errno="ENOENT" ;;
  esac
  message="${stderr##*: }"
  if [[ $status == partial && -z ${HOME:-} ]]; then
    status="error" message="HOME is not set: only those of the $# known files outside of it were looked for"
  elif [[ $status == partial ]]; then
    message="none of the $# known files is there"
  fi
fi

"$emit_record" \
  --run-mode "$FENCE_RUN_MODE" \
  --probe-name "$probe_name" \
  --probe-version "1" \
  --primary-capability-id "$primary_capability_id" \
  --command "$command" \
  --category "agent_policy" \
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
