#!/usr/bin/env bash
# Run the tests, after setting up where that is needed; see --help.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib/common.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/lib/common.sh"

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  cat <<'EOF'
Usage: scripts/test.sh [PYTEST ARGUMENTS...]

Sets up .venv if needed (scripts/setup.sh, and tests/requirements.txt in a folder of its own) and runs pytest in the
repository's root, on as many processes as there are CPUs. Arguments go to pytest: scripts/test.sh tests/data_prep -k
catalogues. The exit status is pytest's.

Environment: TEST_PROCESSES sets the number of processes; 0 runs everything in one, for debugging.
EOF
  exit 0
fi

processes=${TEST_PROCESSES:-$("${PYTHON:-python3}" -c 'import os; print(len(os.sched_getaffinity(0)))' 2>/dev/null || echo 2)}
[[ $processes =~ ^[0-9]{1,3}$ ]] || die "TEST_PROCESSES must be a number from 0 to 999, got '$processes'"

"$ROOT/scripts/setup.sh"
activate_venv
cd "$ROOT"

# Renamed when complete. Without it, the tests that need it are skipped.
packages=$VENV/test-packages
if ! cmp -s tests/requirements.txt "$packages/requirements.txt"; then
  mkdir -p "$VENV/log"
  rm -rf "$packages" "$packages.tmp"
  if run_logged "$VENV/log/pip-test-packages.log" "installing what only tests need" python -m pip install --no-input \
    --disable-pip-version-check --no-deps --no-build-isolation --target "$packages.tmp" -r tests/requirements.txt; then
    cp tests/requirements.txt "$packages.tmp/requirements.txt"
    mv "$packages.tmp" "$packages"
  else
    say "that failed; a test will be skipped for want of it (log: $VENV/log/pip-test-packages.log)"
  fi
fi

# A process each is parallel enough; several threads in each of them would wait for one another.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec python -m pytest -n "$processes" --dist loadscope "$@"
