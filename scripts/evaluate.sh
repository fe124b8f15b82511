#!/usr/bin/env bash
# From checkpoints and a data-bin to a report of BLEU, chrF and TER; see --help.
# The code is in realformer_nmt/tools/evaluate.py.
set -euo pipefail

# shellcheck source=scripts/lib/common.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/lib/common.sh"

# One of fairseq's dependencies is behind torch; nothing that a user can act on.
export PYTHONWARNINGS=${PYTHONWARNINGS:-ignore::FutureWarning:fairscale.experimental.nn.offload}
run_fairseq_module realformer_nmt.tools.evaluate "$@"
