#!/usr/bin/env bash
# From checkpoints and a data-bin to a report of BLEU, chrF and TER; see --help.
# The code is in realformer_nmt/tools/evaluate.py.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-}
if [[ -z $python ]]; then
  python=python3
  if [[ -n ${VIRTUAL_ENV:-} && -x $VIRTUAL_ENV/bin/python ]]; then
    python=$VIRTUAL_ENV/bin/python
  elif [[ -x $root/.venv/bin/python ]]; then
    python=$root/.venv/bin/python
  fi
fi
PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} exec "$python" -m realformer_nmt.tools.evaluate "$@"
