"""The command behind data_prep/*.sh: ``python -m data_prep CORPUS [flags]``."""
import argparse
import os
import re
import signal
import sys

from data_prep.corpora import CORPORA, Corpus, Piece
from data_prep.errors import DataPrepError
from data_prep.pipeline import FULL, Options, Pipeline, plan
from data_prep.tokenise import check_language

_DESCRIPTIONS = {
    "wmt14_en_fr": "Prepares WMT'14 English-French (40.8 million pairs) as a fairseq data-bin.",
    "wmt14_en_de": "Prepares WMT'14 English-German (4.6 million pairs) as a fairseq data-bin.",
    "iwslt14_de_en": "Prepares IWSLT'14 German-English (160,000 pairs) as a fairseq data-bin.",
    "multi30k_en_fr": "Prepares Multi30k English-French (29,000 pairs) as a fairseq data-bin.",
    "prepare": "Prepares your own parallel text as a fairseq data-bin.",
}
_EPILOG = ("Rerun the same command after any interruption: finished stages are kept, downloads resume. "
           "Environment: DATA_PREP_MIRROR (base address to fetch the archives from), DATA_PREP_CHECKSUMS, "
           "DATA_PREP_RETRIES, DATA_PREP_PAUSE, PYTHON. See docs/data.md.")


def _at_least(lowest):
    def convert(text):
        try:
            value = int(text)
        except ValueError:
            value = lowest - 1
        if value < lowest:
            raise argparse.ArgumentTypeError("must be a whole number from %d up, not %r" % (lowest, text))
        return value
    return convert


_positive = _at_least(1)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage before it."""

    def error(self, message):
        self.exit(2, "%s: error: %s (see --help)\n" % (self.prog, message))


def _cpus():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parser(name):
    """The argument parser of the entry point `name`; every one has the same flags, some have more."""
    corpus = CORPORA.get(name)
    result = _Parser(prog="data_prep/%s.sh" % name, description=_DESCRIPTIONS[name], epilog=_EPILOG,
                     allow_abbrev=False)
    result.add_argument("--out", metavar="DIR", default=name if corpus else None, required=not corpus,
                        help="output folder: data-bin/, manifest.json, bpe.codes, text/, download/, work/"
                             + (" (default: %(default)s)" if corpus else ""))
    result.add_argument("--workers", metavar="N", type=_positive, default=_cpus(),
                        help="processes; the output is the same for any number (default: the CPUs, here %(default)s)")
    result.add_argument("--bpe-merges", metavar="N", type=_positive, default=corpus.bpe_merges if corpus else 40000,
                        help="joint BPE merges (default: %(default)s)")
    result.add_argument("--threshold", metavar="N", type=_positive, default=0,
                        help="BPE pieces seen fewer than N times in the training text become <unk>, as with "
                             "fairseq-preprocess --thresholdsrc (default: %(default)s, keep all)")
    result.add_argument("--limit", metavar="N", type=_positive,
                        help="only the first N training pairs, for a trial; archives past them are not fetched")
    result.add_argument("--valid-every", metavar="N", type=_at_least(2), default=corpus.valid_every if corpus else 1333,
                        help="every Nth training line is a valid line (default: %(default)s, 0: there is a valid set "
                             "of its own)")
    result.add_argument("--dry-run", action="store_true", help="print the plan and do nothing")
    result.add_argument("--keep-raw", action="store_true",
                        help="keep the extracted, tokenised and BPE-encoded text in DIR/work")
    if name == "multi30k_en_fr":
        result.add_argument("--from", metavar="DIR", dest="folder",
                            help="folder with train, val and test_2016_flickr, .en and .fr, plain or .gz, instead of "
                                 "fetching them")
    if name == "prepare":
        result.add_argument("--source-lang", metavar="LANG", required=True, help="two-letter code, e.g. en")
        result.add_argument("--target-lang", metavar="LANG", required=True, help="two-letter code, e.g. fr")
        for split, required in (("train", True), ("valid", False), ("test", False)):
            result.add_argument("--" + split, metavar="PREFIX", required=required,
                                help="%s text: PREFIX.LANG, one sentence a line, plain or .gz%s"
                                     % (split, "" if split != "valid" else " (default: lines of the training text)"))
    return result


def _find(prefix, lang):
    """The file PREFIX.LANG or PREFIX.LANG.gz; DataPrepError where there is neither."""
    for path in ("%s.%s" % (prefix, lang), "%s.%s.gz" % (prefix, lang)):
        if os.path.isfile(path):
            return path
    raise DataPrepError("no file %s.%s (or .gz); check the prefix and the language" % (prefix, lang))


def _own(args):
    """The Corpus and its local files for prepare.sh."""
    langs, pieces, local = (args.source_lang, args.target_lang), {}, {}
    for lang in langs:
        if not re.fullmatch("[A-Za-z0-9_-]+", lang):
            raise DataPrepError("%r is no language code; give letters, digits, _ and - only, as in PREFIX.en" % lang)
        check_language(lang)
    if langs[0] == langs[1]:
        raise DataPrepError("--source-lang and --target-lang are both %s; give two languages" % langs[0])
    for split in ("train", "valid", "test"):
        prefix = getattr(args, split)
        pieces[split] = ()
        if prefix:
            pieces[split] = (Piece(split, (None, None), ("", "")),)
            local[split, split] = tuple(_find(prefix, lang) for lang in langs)
    corpus = Corpus(name="prepare", langs=langs, train=pieces["train"], valid=pieces["valid"], test=pieces["test"],
                    normalise_test=True)
    return corpus, local


def configure(name, argv):
    """(Corpus, Options, dry run or not) of a command line; raises DataPrepError for files that are not there."""
    args = parser(name).parse_args(argv)
    corpus, local = CORPORA.get(name), {}
    if corpus is None:
        corpus, local = _own(args)
    elif getattr(args, "folder", None):
        for split in ("train", "valid", "test"):
            for piece in getattr(corpus, split):
                local[split, piece.name] = tuple(_find(os.path.join(args.folder, piece.name), lang)
                                                 for lang in corpus.langs)
    options = Options(out=args.out, workers=args.workers, bpe_merges=args.bpe_merges, threshold=args.threshold,
                      limit=args.limit, valid_every=args.valid_every, keep_raw=args.keep_raw, local=local)
    return corpus, options, args.dry_run


def _explain(error):
    if error.errno in FULL:
        return "no room left for %s; free some space (or give another --out), then rerun: it goes on from the " \
               "last finished stage" % (error.filename or "the output")
    return "%s: %s" % (error.filename or "error", error.strerror or error)


def _show(lines):
    try:
        print("\n".join(lines), flush=True)
    except BrokenPipeError:  # `... | head`: nobody wants the rest, nor Python's own complaint at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def main(argv=None):
    """Runs the command; returns the exit status: 0, 1 for a stated reason, 2 for wrong usage, 130 for Ctrl-C."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] not in _DESCRIPTIONS:
        print("usage: python -m data_prep {%s} [flags]" % ",".join(_DESCRIPTIONS), file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        corpus, options, dry_run = configure(argv[0], argv[1:])
        if dry_run:
            return _show(plan(corpus, options))
        Pipeline(corpus, options).run()
        return 0
    except DataPrepError as error:
        message = str(error)
    except OSError as error:
        message = _explain(error)
    except ValueError as error:
        message = str(error)
    except KeyboardInterrupt:
        print("data_prep: interrupted; rerun the same command to go on", file=sys.stderr)
        return 130
    print("data_prep: error: %s" % message, file=sys.stderr)
    return 1
