#!/usr/bin/env bash
# See --help. The work is done by data_prep/cli.py.
set -euo pipefail
exec "$(dirname "${BASH_SOURCE[0]}")/run.sh" wmt14_en_fr "$@"
