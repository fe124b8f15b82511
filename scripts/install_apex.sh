#!/usr/bin/env bash
# Build NVIDIA apex from source into .venv; see --help.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib/common.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/lib/common.sh"

usage() {
  cat <<'EOF'
Usage: scripts/install_apex.sh [--source FOLDER-OR-GIT-URL] [--ref REF] [--check]

Builds NVIDIA apex with its C++ and CUDA extensions against the torch in .venv. fairseq then uses its fused LayerNorm
and optimiser kernels. It is optional: everything works without. It needs a CUDA build of torch, a GPU and the CUDA
compiler (nvcc) of torch's CUDA version.

  --source WHERE   a folder with apex's source, or a git URL (default: https://github.com/NVIDIA/apex)
  --ref REF        the branch, tag or commit of a git URL (default: its default branch)
  --check          only say what is installed and whether apex could be built here
  -h, --help       show this

'pip install apex' is something else, a toolkit for Pyramid web applications: never install that one.
EOF
}

source_=https://github.com/NVIDIA/apex
ref=
check=
while (($#)); do
  case $1 in
    --source) need_value "$@" ""; source_=$2; shift 2 ;;
    --ref) need_value "$@" ""; ref=$2; shift 2 ;;
    --check) check=1; shift ;;
    -h | --help) usage; exit 0 ;;
    *) usage_error "unknown argument '$1'" ;;
  esac
done

activate_venv

# nvidia, other or none. Looked up without importing: the wrong one runs web-framework code when imported.
installed=$(python - <<'EOF'
import importlib.util
import os

spec = importlib.util.find_spec("apex")
if spec is None:
    print("none")
else:
    folders = list(spec.submodule_search_locations or [])
    nvidia = any(os.path.isdir(os.path.join(folder, "normalization")) and
                 os.path.isdir(os.path.join(folder, "multi_tensor_apply")) for folder in folders)
    print("nvidia" if nvidia else "other")
EOF
)
case $installed in
  other) die "the 'apex' in $VENV is not NVIDIA's but PyPI's Pyramid toolkit; run '$VENV/bin/pip uninstall apex' and try again" ;;
  nvidia) say "NVIDIA apex is installed in $VENV already" ; exit 0 ;;
esac

cuda=$(python -c 'import torch; print(torch.version.cuda or "")') || die "torch can't be imported in $VENV; run scripts/setup.sh"
[[ -n $cuda ]] || die "the torch in $VENV is a CPU build; apex needs a CUDA build (scripts/setup.sh --torch SPEC)"
python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
  die "torch sees no CUDA GPU on this machine; apex is of use only where there is one"
nvcc=$(python -c '
import os
from torch.utils.cpp_extension import CUDA_HOME
print(os.path.join(CUDA_HOME, "bin", "nvcc") if CUDA_HOME else "")' 2>/dev/null | tail -n 1)
[[ -n $nvcc && -x $nvcc ]] ||
  die "no CUDA compiler (nvcc) found; install the CUDA $cuda toolkit and set CUDA_HOME to its folder"
release=$("$nvcc" --version | sed -n 's/.*release \([0-9][0-9]*\.[0-9][0-9]*\).*/\1/p')
[[ ${release%%.*} == "${cuda%%.*}" ]] ||
  die "$nvcc is of CUDA $release and torch was built for CUDA $cuda; set CUDA_HOME to a toolkit of CUDA ${cuda%%.*}"

if [[ -n $check ]]; then
  say "apex is not installed; it could be built here (CUDA $release)"
  exit 0
fi

mkdir -p "$VENV/log"
if [[ -d $source_ ]]; then
  folder=$(cd -- "$source_" && pwd)
else
  [[ $source_ == *://* || $source_ == *@*:* ]] || die "--source $source_ is neither a folder nor a git URL"
  command -v git >/dev/null || die "git is needed to fetch $source_"
  work=$(mktemp -d "$VENV/apex-XXXXXX")
  trap 'rm -rf -- "$work"' EXIT
  folder=$work/apex
  run_logged "$VENV/log/apex-clone.log" "fetching $source_" git clone --quiet "$source_" "$folder" ||
    die "$source_ can't be fetched: $(tail -n 1 "$VENV/log/apex-clone.log")"
  [[ -z $ref ]] || git -C "$folder" checkout --quiet "$ref" -- || die "$source_ has no '$ref'"
fi
[[ -f $folder/setup.py && -d $folder/csrc ]] || die "$folder is not apex's source: it has no setup.py or no csrc"

log=$VENV/log/apex-build.log
# Newer releases of apex read the environment variables, older ones the global options.
APEX_CPP_EXT=1 APEX_CUDA_EXT=1 run_logged "$log" "building apex (10 minutes or more)" \
  python -m pip install --no-input --disable-pip-version-check --no-cache-dir --no-build-isolation --no-deps -v \
  --config-settings "--build-option=--cpp_ext" --config-settings "--build-option=--cuda_ext" "$folder" ||
  die "apex did not build: $(grep -E 'error' "$log" | tail -n 1) (log: $log)"
python -c 'import amp_C, apex.normalization' ||
  die "apex was installed, but without its CUDA extensions (log: $log)"
say "NVIDIA apex is installed in $VENV"
