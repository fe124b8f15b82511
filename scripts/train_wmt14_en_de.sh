#!/usr/bin/env bash
# Train on WMT'14 English-German, sizes 6l, 12l and 18l, with the published recipe.
# Options: scripts/train_wmt14_en_de.sh --help
set -euo pipefail

exec "$(dirname "${BASH_SOURCE[0]}")/train/launch.sh" wmt14_en_de "$@"
