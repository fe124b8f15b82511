#!/usr/bin/env python3
"""Score what fairseq-generate wrote for the quickstart's test set, and print the report."""
import argparse
import json
import os
import sys

from sacrebleu.metrics import BLEU


def read_lines(path):
    """The lines of the UTF-8 file at `path`, split at newline characters alone."""
    with open(path, encoding="utf-8", newline="\n") as stream:
        return stream.read().split("\n")[:-1]


def read_hypotheses(path, count):
    """The detokenised best hypotheses (D- lines) of fairseq-generate's output, in corpus order.

    Raises ValueError where not exactly the sentences 0..count-1 are there.
    """
    found = {}
    for line in read_lines(path):
        if line.startswith("D-"):
            number, _, rest = line[2:].partition("\t")
            # Of an n-best list, the first is the best.
            found.setdefault(int(number), rest.partition("\t")[2])
    if sorted(found) != list(range(count)):
        raise ValueError("%s: translations of %d sentences, expected %d" % (path, len(found), count))
    return [found[number] for number in range(count)]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", required=True, help="folder with test.en, test.fr and corpus.json")
    parser.add_argument("--generated", required=True, help="output of fairseq-generate")
    parser.add_argument("--out", required=True, help="folder for test.hyp.fr and report.txt")
    parser.add_argument("--samples", type=int, default=5, help="number of sample translations (default: 5)")
    args = parser.parse_args(argv)
    try:
        sources = read_lines(os.path.join(args.corpus, "test.en"))
        references = read_lines(os.path.join(args.corpus, "test.fr"))
        with open(os.path.join(args.corpus, "corpus.json"), encoding="utf-8") as stream:
            counts = json.load(stream)["counts"]
        hypotheses = read_hypotheses(args.generated, len(references))
    except (OSError, ValueError, KeyError) as error:
        print("quickstart_report: %s" % error, file=sys.stderr)
        return 1
    bleu = BLEU()
    score = bleu.corpus_score(hypotheses, [references])
    copying = BLEU().corpus_score(sources, [references])
    # Evenly spaced over the test set, of a length that shows something; not picked by how good they are.
    readable = [n for n, line in enumerate(sources) if 6 <= len(line.split()) <= 20]
    step = max(1, len(readable) // max(1, args.samples))
    lines = ["training pairs: %d (valid %d, test %d)" % (counts["train"], counts["valid"], counts["test"]), ""]
    for number in readable[step // 2::step][:args.samples]:
        lines += ["  English:   " + sources[number], "  model:     " + hypotheses[number],
                  "  reference: " + references[number], ""]
    lines += ["test BLEU, trained model:      %.1f" % score.score,
              "test BLEU, copying the source: %.1f" % copying.score,
              "signature: " + str(bleu.get_signature()), "details: " + str(score)]
    for name, text in (("test.hyp.fr", hypotheses), ("report.txt", lines)):
        path = os.path.join(args.out, name)
        with open(path + ".tmp", "w", encoding="utf-8", newline="\n") as stream:
            stream.writelines(line + "\n" for line in text)
        os.replace(path + ".tmp", path)
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
