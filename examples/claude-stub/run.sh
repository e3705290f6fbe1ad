#!/usr/bin/env bash
# Records the real Claude Code while a script on loopback plays its model, and checks the record.
# No account is needed or looked for: the key is made up, the home is an empty folder.
#   examples/claude-stub/run.sh [FOLDER FOR RUNS]
# Needs `pip install claude-agent-sdk`, which carries the program.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
runs=${1:-runs}
id=calc-$(date -u +%Y%m%dT%H%M%SZ)-$$

claude=$(python3 -c '
import importlib.util
found = importlib.util.find_spec("claude_agent_sdk")
print(found.submodule_search_locations[0] if found else "")')/_bundled
[[ -x $claude/claude ]] || { echo "claude-stub: needs claude-agent-sdk" >&2; exit 2; }

home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
coproc STUB { exec python3 "$here/../../stream/helpers/scripted-model" "$here/script.json"; }
read -r port <&"${STUB[0]}"

request=$(sed -n '/^## Request/,/^## Constraints/{/^##/d;/./p}' "$here/scenario.md")
# IS_SANDBOX: without it, root may not allow everything.
env -i PATH="$claude:$PATH" HOME="$home" TMPDIR="$home" LANG=C.UTF-8 IS_SANDBOX=1 \
  CLAUDE_CODE_TMPDIR="$home" CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 \
  CLAUDE_CODE_MAX_RETRIES=0 ANTHROPIC_API_KEY=made-up-for-the-stub \
  ANTHROPIC_BASE_URL="http://127.0.0.1:$port" \
  stream observe --scenario "$here" --runs "$runs" --run-id "$id" -- \
  claude -p "$request" --output-format stream-json --verbose --dangerously-skip-permissions \
  </dev/null
stream check "$runs/$id"
