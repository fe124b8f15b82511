#!/usr/bin/env python3
"""Tokenise the quickstart's small corpus as Moses does (sacremoses, hyphens split) and apply a joint BPE.

The tokeniser is the one that ``fairseq-interactive --tokenizer moses`` and ``fairseq-generate --tokenizer moses``
use, so raw text can be translated, and output detokenised, by fairseq alone.
"""
import argparse
import contextlib
import io
import os
import sys

from sacremoses import MosesTokenizer
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

LANGS = ("en", "fr")
SPLITS = ("train", "valid", "test")


def read_lines(path):
    """The lines of the UTF-8 file at `path`, split at newline characters alone."""
    with open(path, encoding="utf-8", newline="\n") as stream:
        return stream.read().split("\n")[:-1]


def tokenise(lines, lang):
    """Moses tokens of each line, apart by one space, special characters escaped as Moses does."""
    tokenizer = MosesTokenizer(lang=lang)
    return [tokenizer.tokenize(line, aggressive_dash_splits=True, return_str=True) for line in lines]


def write_lines(path, lines):
    """Writes `lines` to `path` by way of a temporary name."""
    with open(path + ".tmp", "w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(line + "\n" for line in lines)
    os.replace(path + ".tmp", path)


def prepare(source, out, merges, log=lambda line: None):
    """Makes OUT/codes and OUT/{train,valid,test}.bpe.{en,fr} from the folder `source` of raw text."""
    tokens = {}
    for lang in LANGS:
        for split in SPLITS:
            tokens[split, lang] = tokenise(read_lines(os.path.join(source, "%s.%s" % (split, lang))), lang)
        log("tokenised %s" % lang)
    # Learnt on the training text alone; the held-out text must not shape the vocabulary.
    text = io.StringIO("".join(line + "\n" for lang in LANGS for line in tokens["train", lang]))
    codes = io.StringIO()
    log("learning %d joint BPE merges" % merges)
    with contextlib.redirect_stderr(io.StringIO()):  # its progress bar draws on top of ours
        learn_bpe(text, codes, merges)
    os.makedirs(out, exist_ok=True)
    write_lines(os.path.join(out, "codes"), codes.getvalue().splitlines())
    bpe = BPE(io.StringIO(codes.getvalue()))
    for (split, lang), lines in tokens.items():
        write_lines(os.path.join(out, "%s.bpe.%s" % (split, lang)), [bpe.process_line(line) for line in lines])
    log("applied BPE")


def main(argv=None):
    parser = argparse.ArgumentParser(
        description="Tokenise IN/{train,valid,test}.{en,fr} and apply a joint BPE learnt on the training text: "
                    "OUT/codes and OUT/{train,valid,test}.bpe.{en,fr}.")
    parser.add_argument("--in", dest="source", required=True, help="folder of the raw corpus")
    parser.add_argument("--out", required=True, help="folder to write")
    parser.add_argument("--merges", type=int, default=6000, help="number of BPE merges (default: 6000)")
    args = parser.parse_args(argv)
    if args.merges < 1:
        parser.error("--merges must be at least 1, got %d" % args.merges)
    try:
        prepare(args.source, args.out, args.merges, lambda line: print("bpe: " + line, flush=True))
    except (OSError, UnicodeDecodeError) as error:
        print("quickstart_corpus: %s" % error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
