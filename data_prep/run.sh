#!/usr/bin/env bash
# Runs data_prep with the project's Python: $PYTHON, else .venv, else the active environment's.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [[ -z "${PYTHON:-}" ]]; then
    if [[ -z "${VIRTUAL_ENV:-}" && -x "$root/.venv/bin/python" ]]; then
        PYTHON=$root/.venv/bin/python
    else
        PYTHON=$(command -v python3 || command -v python || true)
    fi
fi
if [[ -z "$PYTHON" ]]; then
    echo "data_prep: error: no Python found; set PYTHON to one with the requirements installed" >&2
    exit 1
fi
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
exec "$PYTHON" -m data_prep "$@"
