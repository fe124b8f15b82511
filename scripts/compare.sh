#!/usr/bin/env bash
# Train several systems on the same data, seeds and budget, and compare them; see --help.
# The code is in realformer_nmt/tools/compare.py.
set -euo pipefail

# shellcheck source=scripts/lib/common.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/lib/common.sh"

# One of fairseq's dependencies is behind torch; nothing that a user can act on.
export PYTHONWARNINGS=${PYTHONWARNINGS:-ignore::FutureWarning:fairscale.experimental.nn.offload}
run_fairseq_module realformer_nmt.tools.compare "$@"
