#!/usr/bin/env bash
# Run the tests, after setting up where that is needed; see --help.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib/common.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/lib/common.sh"

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  cat <<'EOF'
Usage: scripts/test.sh [PYTEST ARGUMENTS...]

Sets up .venv if needed (scripts/setup.sh) and runs pytest in the repository's root, on as many processes as there are
CPUs. Arguments go to pytest: scripts/test.sh tests/data_prep -k catalogues. The exit status is pytest's.

Environment: TEST_PROCESSES sets the number of processes; 0 runs everything in one, for debugging.
EOF
  exit 0
fi

processes=${TEST_PROCESSES:-$("${PYTHON:-python3}" -c 'import os; print(len(os.sched_getaffinity(0)))' 2>/dev/null || echo 2)}
[[ $processes =~ ^[0-9]{1,3}$ ]] || die "TEST_PROCESSES must be a number from 0 to 999, got '$processes'"

"$ROOT/scripts/setup.sh"
activate_venv
cd "$ROOT"
# A process each is parallel enough; several threads in each of them would wait for one another.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec python -m pytest -n "$processes" --dist loadscope "$@"
