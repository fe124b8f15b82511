# Shell helpers shared by the scripts; to be sourced, not run.
# shellcheck shell=bash

# The repository's root, whatever the current folder is.
ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
# The virtual environment that scripts/setup.sh makes; REALFORMER_VENV names another.
VENV=${REALFORMER_VENV:-$ROOT/.venv}

say() {
  printf '[%s] %s\n' "${0##*/}" "$*"
}

# One line on standard error, and exit status 1.
die() {
  printf '%s: error: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

usage_error() {
  printf '%s: error: %s (see --help)\n' "${0##*/}" "$*" >&2
  exit 2
}

# need_value OPTION "$@": OPTION must be followed by a value.
need_value() {
  if [[ $# -lt 3 || -z $2 ]]; then
    usage_error "$1 needs a value"
  fi
}

# need_positive OPTION VALUE
need_positive() {
  if [[ ! $2 =~ ^[1-9][0-9]{0,8}$ ]]; then
    usage_error "$1 needs a whole number above 0, got '$2'"
  fi
}

# run_logged LOG LABEL COMMAND...: runs the command with its output in LOG, and says every 15 seconds that it is
# still at it. Returns the command's status.
run_logged() {
  local log=$1 label=$2 start=$SECONDS pid tick=0 status=0
  shift 2
  say "$label"
  "$@" >"$log" 2>&1 </dev/null &
  pid=$!
  # An interrupt must not leave the command running on its own.
  trap 'kill "$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; exit 130' INT TERM
  while kill -0 "$pid" 2>/dev/null; do
    sleep 1
    tick=$((tick + 1))
    if ((tick % 15 == 0)); then
      say "  ... $label: $((SECONDS - start)) s"
    fi
  done
  wait "$pid" || status=$?
  trap - INT TERM
  return "$status"
}

# Puts the virtual environment's programs first; scripts/setup.sh must have made it.
activate_venv() {
  if [[ ! -x $VENV/bin/python ]]; then
    die "$VENV has no virtual environment in it; run scripts/setup.sh first"
  fi
  export VIRTUAL_ENV=$VENV PATH=$VENV/bin:$PATH
  unset PYTHONHOME
}

# Sets PYTHON: $PYTHON, else the active environment's, else $VENV's where there is one, else the first on the path.
find_python() {
  if [[ -n ${PYTHON:-} ]]; then
    command -v "$PYTHON" >/dev/null || die "PYTHON=$PYTHON is not a program"
  elif [[ -z ${VIRTUAL_ENV:-} && -x $VENV/bin/python ]]; then
    PYTHON=$VENV/bin/python
  else
    PYTHON=$(command -v python3 || command -v python) ||
      die "no Python found; set PYTHON to one with the requirements installed, or run scripts/setup.sh"
  fi
}

# run_module MODULE ARGUMENTS...: becomes `python -m MODULE ARGUMENTS`, the repository's code first on the path.
run_module() {
  find_python
  PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH} exec "$PYTHON" -m "$@"
}

# run_fairseq_module MODULE ARGUMENTS...: run_module for what can't even say in Python that fairseq isn't there.
run_fairseq_module() {
  find_python
  "$PYTHON" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("fairseq") is None)' >/dev/null 2>&1 ||
    die "$PYTHON has no fairseq; run scripts/setup.sh, or set PYTHON to one with the requirements installed"
  run_module "$@"
}
