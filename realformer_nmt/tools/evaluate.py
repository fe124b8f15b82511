"""From checkpoints and a data-bin to one report: average, generate, check, score, compare."""

import argparse
import os
import re
import shutil
import sys
import time
from pathlib import Path

from realformer_nmt.tools import generation, scores
from realformer_nmt.tools.files import ToolError, read_lines, run_main, write_json, write_lines, write_text
from realformer_nmt.tools.stamps import fingerprint, is_current, write_stamp

DESCRIPTION = """\
Translate a subset of a data-bin with fairseq-generate and score it.

MODEL is a checkpoint file, a directory (its last checkpoints are averaged), or an
ensemble of these joined by ':'. Further flags of fairseq-generate go after '--'.
"""
EPILOG = """\
files written to --output:
  report.md, report.json   scores, signatures, commands
  hyp.tok, ref.tok         tokenised text in source order, BPE removed
  hyp.detok, ref.detok     raw text in source order
  generate.txt             everything fairseq-generate printed
A second call with the same model and flags keeps the translations and scores them again.
"""


def say(text):
    print(f"evaluate: {text}", file=sys.stderr, flush=True)


def get_parser():
    parser = argparse.ArgumentParser(
        prog="evaluate.sh",
        usage="%(prog)s DATA_BIN --path MODEL [flags] [-- flags of fairseq-generate]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("data_bin", metavar="DATA_BIN", help="directory made by fairseq-preprocess")
    add("--path", required=True, metavar="MODEL", help="checkpoint, directory, or several joined by ':'")
    add("--output", metavar="DIR", help="directory of the report (default: MODEL's directory, evaluate-<subset>)")
    add("--gen-subset", default="test", metavar="NAME", help="subset to translate (default: test)")
    add("--source-lang", metavar="LANG", help="source language (default: as in DATA_BIN)")
    add("--target-lang", metavar="LANG", help="target language (default: as in DATA_BIN)")

    group = parser.add_argument_group("averaging, for a directory")
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--num-epoch-checkpoints", type=int, metavar="N", help="average the last N epoch checkpoints (default: 10)"
    )
    which.add_argument("--num-update-checkpoints", type=int, metavar="N", help="average the last N update checkpoints")
    group.add_argument(
        "--checkpoint-upper-bound", type=int, metavar="N", help="leave out checkpoints after this epoch or update"
    )

    group = parser.add_argument_group("generation")
    group.add_argument("--beam", type=int, default=5, metavar="N", help="beam size (default: 5)")
    group.add_argument("--lenpen", type=float, default=0.8, metavar="X", help="length penalty (default: 0.8)")
    group.add_argument("--max-tokens", type=int, default=4000, metavar="N", help="source tokens a batch (default: 4000)")
    group.add_argument(
        "--post-process", default="subword_nmt", metavar="KIND", help="BPE to undo (default: subword_nmt; see fairseq)"
    )
    group.add_argument(
        "--processes", type=int, metavar="N", help="processes to share the sentences (default: one a GPU, 1 on CPU)"
    )
    group.add_argument("--cpu", action="store_true", help="do not use GPUs")
    group.add_argument("--fp16", action="store_true", help="half precision (GPU)")

    group = parser.add_argument_group("scoring")
    group.add_argument(
        "--reference",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="raw references for sacreBLEU, chrF and TER (default: the data-bin's, detokenised)",
    )
    group.add_argument(
        "--tokenized-reference",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="tokenised references without BPE for multi-bleu (default: the data-bin's)",
    )
    group.add_argument(
        "--no-detokenize", action="store_true", help="the data-bin was not tokenised by Moses: take its text as raw"
    )
    group.add_argument("--sacrebleu-tokenize", default="13a", metavar="NAME", help="sacreBLEU tokeniser (default: 13a)")
    group.add_argument(
        "--split-compounds",
        choices=("auto", "yes", "no"),
        default="auto",
        help="also BLEU with hyphenated words split, as En-De papers report (auto: when the target is German)",
    )
    group.add_argument(
        "--baseline",
        metavar="PATH",
        help="second system to test against: an --output of evaluate.sh, or a file of raw translations",
    )
    group.add_argument("--resamples", type=int, default=1000, metavar="N", help="bootstrap resamples (default: 1000)")
    group.add_argument("--trials", type=int, default=10000, metavar="N", help="randomisation trials (default: 10000)")
    return parser


def parse_args(argv=None):
    """The command line; what follows ``--`` is kept for fairseq-generate as ``generate_flags``."""
    argv = list(sys.argv[1:] if argv is None else argv)
    end = argv.index("--") if "--" in argv else len(argv)
    args = get_parser().parse_args(argv[:end])
    args.generate_flags = argv[end + 1 :]
    return args


def find_languages(data_bin, subset, source=None, target=None):
    """Languages of a subset of a data-bin, from its file names, as fairseq infers them.

    Raises:
        ToolError: no such subset, or several pairs of languages and none chosen.
    """
    data_bin = Path(data_bin)
    if not data_bin.is_dir():
        raise ToolError(f"{data_bin}: is not a directory made by fairseq-preprocess")
    pairs = set()
    for name in os.listdir(data_bin):
        match = re.fullmatch(rf"{re.escape(subset)}\.([^.]+)-([^.]+)\.([^.]+)\.(?:idx|bin)", name)
        if match:
            first, second = match.group(1), match.group(2)
            # fairseq reads a pair in both directions.
            pairs.update({(first, second), (second, first)} if source or target else {(first, second)})
    pairs = sorted(p for p in pairs if source in (None, p[0]) and target in (None, p[1]))
    if not pairs:
        raise ToolError(f"{data_bin}: holds no subset '{subset}' of these languages (--gen-subset, --source-lang)")
    if len(pairs) > 1:
        choices = ", ".join("-".join(pair) for pair in pairs)
        raise ToolError(f"{data_bin}: holds several pairs ({choices}); choose by --source-lang and --target-lang")
    return pairs[0]


def resolve_models(args, output):
    """Checkpoint files to translate with; directories are averaged into ``output`` unless that is done already."""
    from realformer_nmt.tools.average import average_checkpoints, find_checkpoints, save_checkpoint

    update_based = args.num_update_checkpoints is not None
    count = args.num_update_checkpoints if update_based else args.num_epoch_checkpoints
    files, sources = [], []
    parts = [Path(part) for part in args.path.split(os.pathsep) if part]
    averaging = (count, args.checkpoint_upper_bound) != (None, None)
    if averaging and not any(part.is_dir() for part in parts):
        raise ToolError("--num-epoch-checkpoints and the like need a directory in --path, not files")
    for index, part in enumerate(parts):
        if part.is_file():
            files.append(part)
            sources.append([str(part)])
        elif part.is_dir():
            inputs = find_checkpoints(part, 10 if count is None else count, update_based, args.checkpoint_upper_bound)
            average = output / (f"average-{index + 1}.pt" if len(parts) > 1 else "average.pt")
            stamp, made_from = average.with_suffix(".json"), [fingerprint(path) for path in inputs]
            if not (average.is_file() and is_current(stamp, made_from)):
                say(f"averaging {len(inputs)} checkpoints of {part}")
                save_checkpoint(
                    average_checkpoints(inputs, lambda i, n, path: say(f"[{i + 1}/{n}] {path.name}")), average
                )
                write_stamp(stamp, made_from)
            files.append(average)
            sources.append([str(path) for path in inputs])
        else:
            raise ToolError(f"{part}: no such checkpoint file or directory (--path)")
    if not files:
        raise ToolError("--path names no checkpoint")
    return files, sources


def find_gpus(cpu):
    """Ids of the visible GPUs, none with ``cpu``."""
    import torch

    if cpu or not torch.cuda.is_available():
        return []
    visible = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    return visible or list(range(torch.cuda.device_count()))


def count_sentences(data_bin, subset, source, target):
    """Number of sentences in a subset, or None where the index cannot be read."""
    from fairseq.data import data_utils

    for pair in (f"{source}-{target}", f"{target}-{source}"):
        dataset = data_utils.load_indexed_dataset(str(Path(data_bin) / f"{subset}.{pair}.{source}"), None)
        if dataset is not None:
            return len(dataset)
    return None


def generate(args, files, output, source, target):
    """Translate (or find the translations of an earlier call); returns the command and the lines by kind."""
    gpus = find_gpus(args.cpu)
    processes = args.processes or max(1, len(gpus))
    flags = ["--gen-subset", args.gen_subset, "--source-lang", source, "--target-lang", target]
    flags += ["--beam", str(args.beam), "--lenpen", str(args.lenpen), "--max-tokens", str(args.max_tokens)]
    flags += ["--post-process", args.post_process] if args.post_process not in ("", "none") else []
    # With its default of 8, fairseq leaves out the last sentences of a pass where they do not fill such a batch.
    flags += ["--required-batch-size-multiple", "1"]
    # Without a terminal fairseq's progress bar is one endless line.
    flags += ["--log-format", "simple", "--log-interval", "1000"]
    flags += (["--cpu"] if not gpus else []) + (["--fp16"] if args.fp16 else []) + args.generate_flags
    command = generation.generate_command(args.data_bin, files, flags)
    total = count_sentences(args.data_bin, args.gen_subset, source, target)

    directory = output / "shards"
    made_from = [command[1:], processes, [fingerprint(path) for path in files], data_fingerprint(args, source, target)]
    if not is_current(directory / "made_from.json", made_from):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        write_stamp(directory / "made_from.json", made_from)
    where = f"GPU {','.join(map(str, gpus))}" if gpus else "CPU"
    say(f"translating {total} sentences of {args.gen_subset} ({source}-{target}) in {processes} process(es) on {where}")
    start = time.monotonic()
    shards = generation.run_shards(command, directory, processes, gpus, total, say)
    say(f"translations ready ({time.monotonic() - start:.0f} s)")
    generation.write_generated(shards, output / "generate.txt")
    lines = generation.read_generated(shards)
    if total is not None and len(lines["H"]) != total:
        raise ToolError(f"{directory}: {len(lines['H'])} translations of {total} sentences: some were skipped")
    return command, lines


def data_fingerprint(args, source, target):
    names = sorted(Path(args.data_bin).glob(f"{args.gen_subset}.*.*"))
    names += [Path(args.data_bin) / f"dict.{language}.txt" for language in (source, target)]
    return [fingerprint(path) for path in names if path.is_file()]


def score(args, lines, output, target):
    """Check and score translations; writes the text files; returns the report's 'scores', 'notes', 'significance'."""
    notes = []
    scores.check_no_bpe_marks(lines["H"], "hypotheses")
    hyp_tok = lines["H"]
    has_tokenizer = lines["D"] != lines["H"]
    if has_tokenizer:
        hyp_raw = lines["D"]  # fairseq's own --tokenizer did it
    else:
        hyp_raw = hyp_tok if args.no_detokenize else scores.detokenize(hyp_tok, target)

    tok_names = args.tokenized_reference or ["targets of the data-bin"]
    if args.tokenized_reference:
        ref_tok = [read_lines(path) for path in args.tokenized_reference]
    elif lines["T"] is not None and not has_tokenizer:
        ref_tok = [lines["T"]]
        unknown = sum("<<unk>>" in line for line in lines["T"])
        if unknown:
            notes.append(
                f"{unknown} references hold words outside the dictionary, which the data-bin lost (they count as "
                "wrong); give --tokenized-reference and --reference"
            )
    else:
        ref_tok = []
    for reference, name in zip(ref_tok, tok_names):
        scores.check_no_bpe_marks(reference, name)
    scores.check_lines(hyp_tok, ref_tok, tok_names)

    raw_names = args.reference or tok_names
    if args.reference:
        ref_raw = [read_lines(path) for path in args.reference]
    elif has_tokenizer and lines["T"] is not None:
        ref_raw, raw_names = [lines["T"]], ["targets of the data-bin"]
    else:
        ref_raw = ref_tok if args.no_detokenize else [scores.detokenize(reference, target) for reference in ref_tok]
        if ref_tok:
            notes.append(
                "sacreBLEU, chrF and TER are against tokenised references"
                + (" taken as they are" if args.no_detokenize else " detokenised again")
                + "; give --reference FILE for figures to compare with others'"
            )
    scores.check_lines(hyp_raw, ref_raw, raw_names)
    if not ref_tok and not ref_raw:
        raise ToolError(f"{args.data_bin}: has no targets; give --reference or --tokenized-reference")
    empty = sum(not line.strip() for line in hyp_tok)
    if empty:
        notes.append(f"{empty} hypotheses are empty")

    write_lines(output / "hyp.tok", hyp_tok)
    write_lines(output / "hyp.detok", hyp_raw)
    for name, references in (("ref.tok", ref_tok), ("ref.detok", ref_raw)):
        for index, reference in enumerate(references):
            write_lines(output / (name if len(references) == 1 else f"{name}.{index}"), reference)

    table = {}
    if ref_tok:
        compounds = args.split_compounds == "yes" or (args.split_compounds == "auto" and target == "de")
        table.update(scores.score_tokenized(hyp_tok, ref_tok, compounds))
    significance = None
    if ref_raw:
        table.update(scores.score_detokenized(hyp_raw, ref_raw, args.sacrebleu_tokenize))
        if args.baseline:
            significance = compare_with_baseline(args, hyp_raw, ref_raw)
    return {"scores": table, "significance": significance, "notes": notes}


def compare_with_baseline(args, hyp_raw, ref_raw):
    path = Path(args.baseline)
    path = path / "hyp.detok" if path.is_dir() else path
    baseline = read_lines(path)
    scores.check_lines(hyp_raw, [baseline], [path])
    say(f"testing significance against {path}")
    table = scores.compare_systems(
        hyp_raw, baseline, ref_raw, args.sacrebleu_tokenize, args.resamples, args.trials
    )
    return {"baseline": str(path), "metrics": table}


def markdown(report):
    """The report as a Markdown page."""
    out = [f"# {report['languages']}, {report['subset']}: {report['sentences']} sentences", ""]
    for model in report["models"]:
        inputs = model["inputs"]
        if inputs == [model["path"]]:
            out.append(f"- model: `{model['path']}`")
        else:
            names = ", ".join(Path(path).name for path in inputs)
            out.append(f"- model: mean of {len(inputs)} checkpoints of `{Path(inputs[0]).parent}`: {names}")
    out += [f"- data: `{report['data_bin']}`", ""]
    out += ["| score | value | details |", "|---|---:|---|"]
    for name, entry in report["scores"].items():
        details = " ".join(part for part in (entry["text"], entry.get("signature", "")) if part).replace("|", "\\|")
        out.append(f"| {name} | {entry['score']:.2f} | `{details}` |")
    if report["significance"]:
        out += ["", f"## Against `{report['significance']['baseline']}`", ""]
        out += [
            "p: chance of so large a difference, or a larger one, were both systems equally good.",
            "",
            "| score | this system | baseline | p, paired bootstrap | p, approximate randomisation |",
            "|---|---:|---:|---:|---:|",
        ]
        for name, row in report["significance"]["metrics"].items():
            values = f"{row['system']:.2f} | {row['baseline']:.2f}"
            tests = f"{row['bootstrap']['p_value']:.4f} | {row['randomisation']['p_value']:.4f}"
            out.append(f"| {name} | {values} | {tests} |")
    if report["notes"]:
        out += ["", "## Notes", "", *[f"- {note}" for note in report["notes"]]]
    out += ["", "## Command", "", "```", report["command"], "```", ""]
    return "\n".join(out)


def main(argv=None):
    args = parse_args(argv)
    if args.beam < 1 or (args.processes is not None and args.processes < 1):
        raise ToolError("--beam and --processes must be 1 or more")
    source, target = find_languages(args.data_bin, args.gen_subset, args.source_lang, args.target_lang)
    for path in [*args.reference, *args.tokenized_reference, *([args.baseline] if args.baseline else [])]:
        if not Path(path).exists():
            raise ToolError(f"{path}: no such file")  # known before minutes of translation
    first = Path(args.path.split(os.pathsep)[0])
    default = (first if first.is_dir() else first.parent) / f"evaluate-{args.gen_subset}"
    output = Path(args.output) if args.output else default
    output.mkdir(parents=True, exist_ok=True)

    files, inputs = resolve_models(args, output)
    command, lines = generate(args, files, output, source, target)
    scored = score(args, lines, output, target)
    report = {
        "languages": f"{source}-{target}",
        "subset": args.gen_subset,
        "sentences": len(lines["H"]),
        "data_bin": str(args.data_bin),
        "models": [{"path": str(path), "inputs": names} for path, names in zip(files, inputs)],
        "command": " ".join(["fairseq-generate", *command[3:]]),
        **scored,
    }
    write_json(output / "report.json", report)
    page = markdown(report)
    write_text(output / "report.md", page)
    print(page)
    print(f"written to {output}")


if __name__ == "__main__":
    run_main(main, program="evaluate.sh")
