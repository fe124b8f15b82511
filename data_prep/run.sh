#!/usr/bin/env bash
# Runs data_prep with the project's Python: $PYTHON, the active environment's, or .venv's.
set -euo pipefail

# shellcheck source=scripts/lib/common.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/lib/common.sh"

run_module data_prep "$@"
