#!/usr/bin/env bash
# Make .venv with everything in requirements.txt; see --help.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib/common.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/lib/common.sh"

usage() {
  cat <<'EOF'
Usage: scripts/setup.sh [--python PROGRAM] [--torch SPEC] [--system-site-packages] [--force]

Makes the virtual environment .venv beside this repository's README and installs requirements.txt into it, torch and
the build tools first and fairseq against those. Run again it takes seconds: it only checks. A broken or half-made
.venv is completed.

  --python PROGRAM         the Python to use, 3.9 to 3.13 (default: python3.11, or the first other one found)
  --torch SPEC             what pip is asked for, within torch>=2.6,<2.14: 'torch==2.7.1', a wheel's path or URL
                           (default: torch==2.13.0, for Python 3.9 torch==2.8.0; a fitting torch that is
                           already in the environment stays)
  --system-site-packages   let .venv see the packages of that Python, and so use its torch if it fits
  --force                  install again even where nothing seems to be missing
  -h, --help               show this

Environment: PYTHON and TORCH_SPEC stand in for --python and --torch. REALFORMER_VENV names another place than .venv.
pip's own settings (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, ...) are kept, for instance for a CUDA or CPU build of torch.
EOF
}

python=${PYTHON:-}
torch_spec=${TORCH_SPEC:-}
system_site=()
force=
while (($#)); do
  case $1 in
    --python) need_value "$@" ""; python=$2; shift 2 ;;
    --torch) need_value "$@" ""; torch_spec=$2; shift 2 ;;
    --system-site-packages) system_site=(--system-site-packages); shift ;;
    --force) force=1; shift ;;
    -h | --help) usage; exit 0 ;;
    *) usage_error "unknown argument '$1'" ;;
  esac
done

stamp=$VENV/.realformer-setup
logs=$VENV/log

# What must have been installed for the environment to count as made.
wanted() {
  sha256sum "$ROOT/requirements.txt" "$ROOT/scripts/setup.sh" | cut -d' ' -f1
}

# Imports what set-up is for; prints the reason where that fails.
check_imports() {
  "$VENV/bin/python" - 2>&1 <<'EOF'
import importlib
import os
import sys

os.environ.setdefault("TQDM_DISABLE", "1")
for name in ("torch", "numpy", "fairseq", "fairseq.data.data_utils_fast", "fairseq_cli.train", "sacrebleu",
             "sacremoses", "subword_nmt", "polib", "tensorboardX", "matplotlib", "scipy", "regex", "pytest",
             "xdist", "pytest_timeout"):
    try:
        importlib.import_module(name)
    except Exception as error:
        sys.exit("'import %s' fails: %s: %s" % (name, type(error).__name__, str(error).split("\n")[0]))
import torch
version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
if not (2, 6) <= version < (2, 14):
    sys.exit("torch %s is outside >=2.6,<2.14" % torch.__version__)
EOF
}

# Lets 'import realformer_nmt' and 'fairseq-train --user-dir realformer_nmt' work from any folder: fairseq looks for
# a user-dir beside its own package, which an editable install of pip's would not put there.
link_packages() {
  local site package
  site=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  for package in realformer_nmt data_prep; do
    if [[ -e $site/$package && ! -L $site/$package ]]; then
      die "$site/$package is an installed copy; run '$VENV/bin/pip uninstall realformer-nmt' and try again"
    fi
    ln -sfn "$ROOT/$package" "$site/$package"
  done
}

finish() {
  local versions
  versions=$("$VENV/bin/python" -c '
import platform, torch
from importlib.metadata import distributions
names = {d.metadata["Name"]: d.version for d in distributions()}
fairseq = next(n for n in ("fairseq-fixed", "fairseq") if n in names)
print("Python %s, torch %s, %s %s" % (platform.python_version(), torch.__version__, fairseq, names[fairseq]))')
  say "ready: $versions in $VENV"
  say "to use it in this shell: source $VENV/bin/activate"
}

if [[ -z $force && -z $torch_spec && -z $python && -f $stamp && $(<"$stamp") == "$(wanted)" ]]; then
  if reason=$(check_imports); then
    link_packages
    finish
    exit 0
  fi
  say "the environment was complete but is not any more ($(tail -n 1 <<<"$reason")); repairing it"
fi

# --- which Python -----------------------------------------------------------------------------------------------
fits='import sys; sys.exit(not (3, 9) <= sys.version_info[:2] <= (3, 13))'
if [[ -n $python ]]; then
  command -v "$python" >/dev/null || die "'$python' is not a program; give --python a Python 3.9 to 3.13"
  "$python" -c "$fits" 2>/dev/null ||
    die "'$python' is $("$python" -c 'import platform; print("Python", platform.python_version())' 2>/dev/null ||
      echo "no Python 3"); Python 3.9 to 3.13 is needed"
else
  for candidate in python3.11 python3.12 python3.10 python3.13 python3.9 python3 python; do
    if command -v "$candidate" >/dev/null && "$candidate" -c "$fits" 2>/dev/null; then
      python=$candidate
      break
    fi
  done
  [[ -n $python ]] || die "no Python 3.9 to 3.13 found; install one, or name one with --python"
fi
"$python" -c 'import venv, ensurepip' 2>/dev/null ||
  die "$python cannot make virtual environments; install its venv package (Debian: apt-get install python3-venv)"

# --- the environment --------------------------------------------------------------------------------------------
version_of='import sys; print("%d.%d" % sys.version_info[:2])'
version=$("$python" -c "$version_of")
if [[ -e $VENV && ! -f $VENV/pyvenv.cfg ]] && [[ -n $(ls -A "$VENV" 2>/dev/null) ]]; then
  die "$VENV exists and is not a virtual environment; move it away, or set REALFORMER_VENV to another place"
fi
if [[ $("$VENV/bin/python" -c "$version_of" 2>/dev/null || true) != "$version" ]] ||
  ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
  say "making $VENV with Python $version"
  "$python" -m venv --clear "${system_site[@]+"${system_site[@]}"}" "$VENV" >/dev/null ||
    die "$python could not make a virtual environment in $VENV"
elif ((${#system_site[@]})); then
  "$python" -m venv --upgrade --system-site-packages "$VENV" >/dev/null ||
    die "$python could not change the virtual environment in $VENV"
fi
rm -f "$stamp"
mkdir -p "$logs"

# pip_step LABEL ARGUMENTS...: pip install, with one line that says why where it fails.
pip_step() {
  local label=$1 log reason
  log=$logs/pip-$(printf '%s' "$label" | tr -cs 'A-Za-z0-9' '-').log
  shift
  if run_logged "$log" "$label" "$VENV/bin/python" -m pip install --no-input --disable-pip-version-check "$@"; then
    return 0
  fi
  if grep -qE 'NewConnectionError|Failed to establish a new connection|name resolution|Network is unreachable|ConnectTimeout|ReadTimeout|ProxyError|SSLError|Connection refused|from versions: none' "$log"; then
    die "$label: the package index can't be reached or has no such package; check the network or pip's settings and run again (log: $log)"
  fi
  if grep -q 'No space left on device' "$log"; then
    die "$label: the disk is full (log: $log)"
  fi
  reason=$(grep -E '^ *(ERROR|error):' "$log" | head -n 1 | sed 's/^ *//' || true)
  die "$label: pip failed: ${reason:-see its log} (log: $log)"
}

# pip from 24.1 on refuses the metadata of the omegaconf that fairseq 0.12.2 needs.
case $version in
  3.9 | 3.10) pip_step "installing build tools" 'pip<24.1' wheel 'setuptools<81' 'cython>=3,<4' 'numpy>=1.22,<1.24' ;;
  *) pip_step "installing build tools" wheel 'setuptools>=64' 'cython>=3,<4' 'numpy>=1.24,<2.5' ;;
esac

if [[ -z $torch_spec ]]; then
  torch_spec=torch==2.13.0
  [[ $version != 3.9 ]] || torch_spec=torch==2.8.0
  if "$VENV/bin/python" -c '
import sys, torch
version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
sys.exit(not (2, 6) <= version < (2, 14))' 2>/dev/null; then
    torch_spec=
  fi
fi
if [[ -n $torch_spec ]]; then
  pip_step "installing $torch_spec" "$torch_spec"
fi

# Nothing that comes after may swap torch for another build.
constraints=$logs/constraints.txt
"$VENV/bin/python" -c 'import torch; print("torch==" + torch.__version__.split("+")[0])' >"$constraints" ||
  die "torch was installed and can't be imported; give another with --torch"

# has_fairseq: whether fairseq is there and its compiled parts load.
has_fairseq() {
  "$VENV/bin/python" -c 'import fairseq.data.data_utils_fast' >/dev/null 2>&1
}

if ! has_fairseq; then
  command -v "${CXX:-g++}" >/dev/null || command -v c++ >/dev/null ||
    die "fairseq needs a C++ compiler and none was found; install one (Debian: apt-get install g++)"
  "$VENV/bin/python" -c '
import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' ||
    die "fairseq needs the header files of Python $version; install them (Debian: apt-get install python3-dev)"
  # Without CUDA_HOME, so that fairseq leaves out its CUDA extensions: nothing here uses them, and they don't
  # compile with a CUDA of another version than torch's.
  case $version in
    3.9 | 3.10)
      # Here with build isolation. The sdist of 0.12.2 lacks the sources of the extensions that it builds when it
      # sees torch; its isolated build asks for none and leaves them out. The constraint goes into it as well.
      echo 'numpy<1.24' >>"$constraints"
      echo 'cython<4' >>"$constraints"
      pip_step "building fairseq (some minutes)" -c "$constraints" fairseq==0.12.2 ;;
    *)
      pip_step "building fairseq (some minutes)" --no-build-isolation -c "$constraints" fairseq-fixed==0.12.3.1 ;;
  esac
fi

pip_step "installing the other requirements" -c "$constraints" --no-build-isolation -r "$ROOT/requirements.txt"

reason=$(check_imports) ||
  die "everything was installed, but $(tail -n 1 <<<"$reason"); run again with --force, or delete $VENV first"
link_packages
wanted >"$stamp.tmp"
mv "$stamp.tmp" "$stamp"
finish
