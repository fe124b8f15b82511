#!/usr/bin/env bash
# Shared by the scripts/train_*.sh commands: finds the project's Python and starts the launcher for one corpus.
#   scripts/train/launch.sh CORPUS [options]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

if [[ $# -lt 1 ]]; then
    echo "usage: scripts/train/launch.sh CORPUS [options]; use scripts/train_wmt14_en_fr.sh and its like" >&2
    exit 2
fi
corpus=$1
shift

# An active virtual environment wins over the one that scripts/setup.sh makes.
if [[ -n ${VIRTUAL_ENV:-} ]]; then
    python=python
elif [[ -x $root/.venv/bin/python ]]; then
    python=$root/.venv/bin/python
else
    python=python3
fi
if ! "$python" -c 'import fairseq' 2>/dev/null; then
    echo "train: error: $python has no fairseq; run scripts/setup.sh first" >&2
    exit 2
fi

export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
# fairseq and fairscale name features that newer torch releases will drop; nothing a user could act on
export PYTHONWARNINGS=${PYTHONWARNINGS:-ignore::FutureWarning,ignore::DeprecationWarning}
exec "$python" -m realformer_nmt.launch --corpus "$corpus" "$@"
