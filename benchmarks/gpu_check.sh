#!/usr/bin/env bash
# A short check on one CUDA machine, under 8 minutes: training steps in fp16, bf16 and amp, parity with float64, fully
# sharded wrapping, and step time and memory against stock fairseq at base and 60L-12L size.
#
#   benchmarks/gpu_check.sh [--out FILE.md] [--seconds N]
#
# Writes a Markdown report (gpu_check.md beside the call unless --out says otherwise).  Exit status: 0 all checks hold,
# 1 one failed, 2 no CUDA device.
set -euo pipefail

out=gpu_check.md
seconds=420
while [[ $# -gt 0 ]]; do
    case $1 in
        --out) out=${2:?--out needs a file}; shift 2 ;;
        --seconds) seconds=${2:?--seconds needs a number}; shift 2 ;;
        -h | --help) sed -n '2,/^set/p' "${BASH_SOURCE[0]}" | sed -e '/^set/d' -e 's/^# \{0,1\}//'; exit 0 ;;
        *) echo "gpu_check: error: unknown option $1; see --help" >&2; exit 2 ;;
    esac
done

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=python3
if [[ -n ${VIRTUAL_ENV:-} ]]; then python=python; elif [[ -x $root/.venv/bin/python ]]; then python=$root/.venv/bin/python; fi
export PYTHONPATH="$root:$root/tests${PYTHONPATH:+:$PYTHONPATH}"
# a hung kernel must not hold the machine
exec timeout --kill-after=10 "$((seconds + 60))" "$python" "$root/benchmarks/gpu_check.py" --out "$out" --seconds "$seconds"
