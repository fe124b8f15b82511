#!/usr/bin/env bash
# Train on WMT'14 English-French, sizes 6l and 60l-12l, with the published recipe.
# Options: scripts/train_wmt14_en_fr.sh --help
set -euo pipefail

exec "$(dirname "${BASH_SOURCE[0]}")/train/launch.sh" wmt14_en_fr "$@"
