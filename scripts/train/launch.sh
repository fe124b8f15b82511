#!/usr/bin/env bash
# Shared by the scripts/train_*.sh commands: finds the project's Python and starts the launcher for one corpus.
#   scripts/train/launch.sh CORPUS [options]
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=../lib/common.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/../lib/common.sh"

if [[ $# -lt 1 ]]; then
    echo "usage: scripts/train/launch.sh CORPUS [options]; use scripts/train_wmt14_en_fr.sh and its like" >&2
    exit 2
fi
corpus=$1
shift

# fairseq and fairscale name features that newer torch releases will drop; nothing a user could act on
export PYTHONWARNINGS=${PYTHONWARNINGS:-ignore::FutureWarning,ignore::DeprecationWarning}
run_fairseq_module realformer_nmt.launch --corpus "$corpus" "$@"
