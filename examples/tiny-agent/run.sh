#!/usr/bin/env bash
# Records the agent beside it, and checks the record.
#   examples/tiny-agent/run.sh [FOLDER FOR RUNS]
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
runs=${1:-runs}
id=slug-$(date -u +%Y%m%dT%H%M%SZ)-$$

stream observe --scenario "$here" --runs "$runs" --run-id "$id" -- "$here/agent.sh"
stream check "$runs/$id"
