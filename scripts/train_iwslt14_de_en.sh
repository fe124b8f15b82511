#!/usr/bin/env bash
# Train on IWSLT'14 German-English, size 6l, with the published recipe.
# Options: scripts/train_iwslt14_de_en.sh --help
set -euo pipefail

exec "$(dirname "${BASH_SOURCE[0]}")/train/launch.sh" iwslt14_de_en "$@"
