"""Data preparation against the published recipe's tools: same lines, same number of processes, medians.

Compared, on REPEATS runs each, taken in turn:
  text    normalise punctuation, remove non-printing characters, tokenise -a: Moses' perl scripts (a pipe of
          three, the tokeniser with as many threads), sacremoses, and data_prep.
  learn   BPE merges from the tokenised text: subword-nmt (text in) and data_prep (count, then learn).
  apply   BPE: subword-nmt (one process, as the recipe has it) and data_prep.
  whole   raw text to data-bin: the published shell recipe's steps and data_prep's pipeline.

Moses' scripts are not part of this project. --moses names a folder with tokenizer/{normalize-punctuation,
remove-non-printing-char,tokenizer}.perl and training/clean-corpus-n.perl, e.g. a checkout's scripts/. --text is
a prefix with PREFIX.en.gz and PREFIX.fr.gz (Multi30k's train).
"""
import argparse
import gzip
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from data_prep import bpe, text  # noqa: E402

LANGS = ("en", "fr")
OPTIONS = {"normalise": True, "aggressive": True, "lowercase": False, "clean_words": None}


def shell(command):
    subprocess.run(["bash", "-c", "set -o pipefail; " + command], check=True, stderr=subprocess.DEVNULL)


def cpu_seconds():
    """CPU time of this process and of its children that have ended."""
    return sum(value for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
               for value in resource.getrusage(who)[:2])


def median(runs, repeats):
    """{name: [(seconds, CPU seconds)]} of the functions `runs`, each run `repeats` times in turn."""
    times = {name: [] for name in runs}
    for _ in range(repeats):
        for name, function in runs.items():
            start, cpu = time.monotonic(), cpu_seconds()
            function()
            times[name].append((time.monotonic() - start, cpu_seconds() - cpu))
    return times


def report(title, lines, times, base):
    """Prints medians of wall and CPU seconds, and each one's ratio to `base`; CPU time does not see other load."""
    print("\n%s (%s lines)" % (title, format(lines, ",")))
    medians = {name: [statistics.median(values) for values in zip(*runs)] for name, runs in times.items()}
    for name, (wall, cpu) in medians.items():
        walls = [run[0] for run in times[name]]
        print("  %-12s %7.2f s (%.2f-%.2f)  %9s lines/s  CPU %7.2f s   %.2f x (CPU %.2f x) %s" % (
            name, wall, min(walls), max(walls), format(int(lines / wall), ","), cpu, medians[base][0] / wall,
            medians[base][1] / cpu, base), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, help="PREFIX of PREFIX.en.gz and PREFIX.fr.gz")
    parser.add_argument("--moses", required=True, help="Moses' scripts folder")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--merges", type=int, default=8000)
    parser.add_argument("--copies", type=int, default=4, help="how often the text is repeated")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="text,learn,apply,whole")
    args = parser.parse_args()
    only = args.only.split(",")
    folder = tempfile.mkdtemp()
    raw, lines = {}, 0
    for lang in LANGS:
        data = gzip.open("%s.%s.gz" % (args.text, lang)).read()
        raw[lang] = os.path.join(folder, "raw." + lang)
        with open(raw[lang], "wb") as out:
            out.write(data * args.copies)
        lines += data.count(b"\n") * args.copies
    tokenizer = os.path.join(args.moses, "tokenizer")
    cleaner = os.path.join(args.moses, "training", "clean-corpus-n.perl")

    def perl(out="perl"):
        for lang in LANGS:
            shell("perl {0}/normalize-punctuation.perl {1} < {2} | perl {0}/remove-non-printing-char.perl | "
                  "perl {0}/tokenizer.perl -q -threads {3} -a -l {1} > {4}/{5}.{1}".format(
                      tokenizer, lang, raw[lang], args.workers, folder, out))

    def sacremoses():
        for lang in LANGS:
            shell("{0}/sacremoses -j {1} -l {2} normalize tokenize -a < {3} > {4}/sacre.{2}".format(
                os.path.dirname(sys.executable), args.workers, lang, raw[lang], folder))

    def ours(workers=args.workers):
        text.process_files("tokenise", [raw[lang] for lang in LANGS], LANGS, OPTIONS,
                           [os.path.join(folder, "ours." + lang) for lang in LANGS], workers)

    def path(name):
        return os.path.join(folder, name)

    tools = os.path.dirname(sys.executable)

    def learn_theirs(out="codes.theirs", source="perl"):
        shell("cat %s.en %s.fr | %s/subword-nmt learn-bpe -s %d > %s" % (path(source), path(source), tools, args.merges,
                                                                       path(out)))

    def learn_ours():
        bpe.count_words("count", [path("ours.en"), path("ours.fr")], path("words"), args.workers)
        bpe.learn_codes("learn", path("words"), path("codes.ours"), args.merges)

    def apply_theirs(codes="codes.theirs", source="perl"):
        for lang in LANGS:
            shell("%s/subword-nmt apply-bpe -c %s < %s.%s > %s.%s" % (tools, path(codes), path(source), lang,
                                                                     path("bpe.theirs"), lang))

    def apply_ours():
        bpe.encode_files("encode", [(path("ours.en"), path("ours.fr"))], (path("bpe.ours.en"), path("bpe.ours.fr")),
                         path("codes.ours"), "benchmark", None, args.workers)

    def recipe():
        perl("r.tok")
        for lang in LANGS:
            shell("awk 'NR%%1333==0' {0}.{1} > {2}.{1}; awk 'NR%%1333!=0' {0}.{1} > {3}.{1}".replace("%%", "%").format(
                path("r.tok"), lang, path("r.valid"), path("r.train")))
        learn_theirs("r.codes", "r.train")
        for split in ("train", "valid"):
            for lang in LANGS:
                shell("%s/subword-nmt apply-bpe -c %s < %s.%s > %s.%s" % (
                    tools, path("r.codes"), path("r." + split), lang, path("r.bpe." + split), lang))
            shell("perl %s -ratio 1.5 %s en fr %s 1 250" % (cleaner, path("r.bpe." + split), path("r.clean." + split)))
        shutil.rmtree(path("r.bin"), ignore_errors=True)
        shell("%s/fairseq-preprocess --source-lang en --target-lang fr --joined-dictionary --trainpref %s --validpref "
              "%s --destdir %s --workers %d > /dev/null" % (tools, path("r.clean.train"), path("r.clean.valid"),
                                                            path("r.bin"), args.workers))

    def pipeline():
        shutil.rmtree(path("out"), ignore_errors=True)
        shell("%s -m data_prep prepare --source-lang en --target-lang fr --train %s --out %s --workers %d "
              "--bpe-merges %d" % (sys.executable, path("raw"), path("out"), args.workers, args.merges))

    os.environ["PYTHONPATH"] = sys.path[0]
    try:
        perl()
        ours()
        same = all(open(path("perl." + lang), "rb").read() == open(path("ours." + lang), "rb").read() for lang in LANGS)
        print("the tokenised text is %s Moses'" % ("byte for byte" if same else "NOT equal to"))
        if "text" in only:
            report("text", lines, median({"perl": perl, "sacremoses": sacremoses, "data_prep": ours}, args.repeats),
                   "perl")
        if "learn" in only:
            report("learn", lines, median({"subword-nmt": learn_theirs, "data_prep": learn_ours}, args.repeats),
                   "subword-nmt")
            print("the codes are %s" % ("equal" if open(path("codes.theirs"), "rb").read() ==
                                        open(path("codes.ours"), "rb").read() else "NOT equal"))
        if "apply" in only:
            if "learn" not in only:
                learn_theirs()
                learn_ours()
            report("apply", lines, median({"subword-nmt": apply_theirs, "data_prep": apply_ours}, args.repeats),
                   "subword-nmt")
        if "whole" in only:
            report("whole", lines, median({"recipe": recipe, "data_prep": pipeline}, args.repeats), "recipe")
            names = sorted(name for name in os.listdir(path("r.bin")) if name != "preprocess.log")
            print("the data-bins are %s" % ("equal" if all(
                open(os.path.join(path("r.bin"), name), "rb").read() ==
                open(os.path.join(path("out"), "data-bin", name), "rb").read() for name in names) else "NOT equal"))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
