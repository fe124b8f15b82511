"""From published archives (or a user's own files) to a data-bin and its manifest."""
import collections
import dataclasses
import errno
import hashlib
import json
import os
import shutil
import sys

from data_prep import archives, binarise, bpe, download, extract_sgm, manifest, text
from data_prep.chunks import read_blocks
from data_prep.dictionary import write_dictionary
from data_prep.errors import DataPrepError
from data_prep.stages import CODE_VERSION, Stages, identity, read_json, remove, write_json

#: What a run leaves in its folder, but for download/ and work/.
RESULTS = ("bpe.codes", "data-bin", "text", "manifest.json")
#: The errors of a full disk, an exhausted quota and a file size limit.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: What a trial's valid set is made of where the training text is shorter than two times `valid_every`.
TRIAL_SHARE = 10


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags.

    limit: training pairs read, None for all. threshold: rarer BPE pieces stay out of the dictionary. local:
    {(split, piece): (source, target) files}.
    """
    out: str
    workers: int = 1
    bpe_merges: int = 40000
    threshold: int = 0
    limit: int = None
    valid_every: int = 1333
    keep_raw: bool = False
    local: dict = dataclasses.field(default_factory=dict)


def train_pieces(corpus, limit):
    """The training pieces that hold the first `limit` pairs; all where it is None or their sizes are unknown."""
    pieces, total = [], 0
    for piece in corpus.train:
        pieces.append(piece)
        total += piece.pairs
        if limit is not None and piece.pairs and total >= limit:
            break
    return tuple(pieces)


def valid_every(options):
    """Every how many lines a valid line is taken: the flag, or less for a trial that would have (almost) none."""
    if options.valid_every and options.limit and options.limit < 2 * options.valid_every:
        return max(2, min(options.valid_every, options.limit // TRIAL_SHARE))
    return options.valid_every


def needed_archives(corpus, options):
    """{Archive: [(split, piece, side)]} of what is taken out of each, in the order of fetching."""
    needed = collections.OrderedDict()
    for split, pieces in (("train", train_pieces(corpus, options.limit)), ("valid", corpus.valid),
                          ("test", corpus.test)):
        for piece in pieces:
            if (split, piece.name) in options.local:
                continue
            for side, archive in enumerate(piece.archives):
                needed.setdefault(archive, []).append((split, piece, side))
    return needed


def plan(corpus, options, environ=os.environ):
    """The plan as lines of text: what is fetched, from where, what is done, what it takes."""
    lines = ["%s: %s to %s" % (corpus.name, *corpus.langs), "fetch into %s:" % os.path.join(options.out, "download")]
    total = 0
    for archive in needed_archives(corpus, options):
        total += archive.size or 0
        lines.append("  %-40s %14s bytes  %s" % (archive.name, format(archive.size, ",") if archive.size else "?",
                                                 download.addresses(archive, environ)[0]))
    if not total:
        lines[1] = "fetch: nothing" if options.local else lines[1]
    for (split, name), files in sorted(options.local.items()):
        lines.append("  %s (%s): %s, %s" % (split, name, *files))
    steps = ["normalise punctuation, remove non-printing characters, " if corpus.normalise_train else "",
             "tokenise as Moses does", " with -a" if corpus.aggressive else "",
             ", lower-case" if corpus.lowercase else ""]
    lines.append("train: %s; " % "".join(steps) + ("all pairs" if options.limit is None
                                                   else "the first %d pairs" % options.limit))
    lines.append("valid: " + (", ".join(piece.name for piece in corpus.valid)
                              or "every %dth training line" % valid_every(options)))
    lines.append("test: " + (", ".join(piece.name for piece in corpus.test) or "none"))
    lines.append("BPE: %d merges learnt jointly on both sides of the training text" % options.bpe_merges)
    lines.append("clean: %d-%d tokens a side, ratio %s, %s" % (
        *corpus.limits, "after BPE" if corpus.clean == "bpe" else "before BPE"))
    lines.append("data-bin as fairseq-preprocess --joined-dictionary%s makes it: %s, %d workers" % (
        " --thresholdsrc %d" % options.threshold if options.threshold else "",
        os.path.join(options.out, "data-bin"), options.workers))
    if corpus.disk_gb and options.limit is None:
        lines.append("disk: about %.4g GB at the peak" % corpus.disk_gb)
    folder = os.path.abspath(options.out)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    lines.append("free at %s: %.1f GB" % (folder, shutil.disk_usage(folder).free / 1e9))
    return lines


class Pipeline:
    """One run: `run` does every stage that is not done yet and returns the manifest's path."""

    def __init__(self, corpus, options, environ=os.environ):
        self.corpus, self.options, self.environ = corpus, options, environ
        self.langs = corpus.langs
        self.every = 0 if corpus.valid else valid_every(options)
        self.sums = download.known_sums(environ)
        self.flags = {"bpe_merges": options.bpe_merges, "threshold": options.threshold, "limit": options.limit,
                      "valid_every": self.every}
        self.text_options = {
            "aggressive": corpus.aggressive, "lowercase": corpus.lowercase,
            "clean_words": list(corpus.limits) if corpus.clean == "words" else None}

    def run(self):
        """Prepares everything; raises DataPrepError with a line for the user."""
        out = self.options.out
        self._check_folder()
        try:
            os.makedirs(out, exist_ok=True)
            stages = Stages(os.path.join(out, "work"))
        except OSError as error:
            if error.errno in FULL:
                raise
            raise DataPrepError("cannot write in the output folder %r (%s: %s); give another --out"
                                % (out, error.filename, error.strerror)) from None
        key = self._key()
        finished = stages.path("stamps", "finished.json")
        path = os.path.join(out, "manifest.json")
        kept = not self.options.keep_raw or all(os.path.isdir(os.path.join(stages.root, name))
                                                for name in ("tok", "bpe"))
        if kept and read_json(finished) == [key, self._result_sizes()]:
            print("%s: already prepared (see %s)" % (out, path), file=sys.stderr)
            return path
        remove(finished)
        raw, stamps = self._raw(stages)
        tokenised = self._tokenise(stages, raw)
        stamps += tokenised.pop("stamps")
        stamps += self._encode(stages, tokenised)
        outputs = manifest.checksums(out, ["data-bin", "bpe.codes"] + (
            [os.path.join("text", "test." + lang) for lang in self.langs] if self.corpus.test else []))
        manifest.write(path, self.corpus.name, self.flags, self._inputs(), stamps, outputs)
        write_json(finished, [key, self._result_sizes()])
        if not self.options.keep_raw:
            for name in ("raw", "tok", "bpe", "words.txt", "dict.txt"):
                remove(os.path.join(stages.root, name))
        self._summary(stamps)
        return path

    def _check_folder(self):
        """Raises DataPrepError where a run would overwrite what is not its own."""
        out = self.options.out
        made = read_json(os.path.join(out, "manifest.json"))
        if not os.path.isdir(os.path.join(out, "work", "stamps")) and not (isinstance(made, dict) and "stages" in made):
            theirs = [name for name in (*RESULTS, "work") if os.path.lexists(os.path.join(out, name))]
            if theirs:
                raise DataPrepError("%s already holds %s that this command did not make; give another --out"
                                    % (out, ", ".join(theirs)))
        for files in self.options.local.values():
            for file in files:
                inside = os.path.relpath(os.path.realpath(file), os.path.realpath(out)).split(os.sep)[0]
                if inside in (*RESULTS, "work"):
                    raise DataPrepError("%s lies where this run writes; copy it elsewhere or give another --out" % file)

    def _key(self):
        described = [CODE_VERSION, repr(self.corpus), self.flags, self._inputs(), sorted(self.sums.items())]
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode("utf-8")).hexdigest()

    def _inputs(self):
        result = {}
        for archive in needed_archives(self.corpus, self.options):
            result[archive.name] = {"address": archive.url, "sum": download.expected_sum(archive, self.sums)}
        for (split, name), files in self.options.local.items():
            for lang, file in zip(self.langs, files):
                result["%s/%s.%s" % (split, name, lang)] = {"size": os.path.getsize(file),
                                                            "sha256": download.sha256_of(file)}
        return result

    def _result_sizes(self):
        found = []
        for name in RESULTS:
            path = os.path.join(self.options.out, name)
            if os.path.isdir(path):
                found += [[name, entry, os.path.getsize(os.path.join(path, entry))]
                          for entry in sorted(os.listdir(path))]
            elif os.path.exists(path):
                found.append([name, os.path.getsize(path)])
        return found

    def _raw(self, stages):
        """{split: [(piece, (source, target) files, inputs)]} and the stamps of the archives' stages."""
        stamps, made = [], {}
        for archive, taken in needed_archives(self.corpus, self.options).items():
            paths = [stages.path("raw", "%s-%s.%s" % (split, piece.name, self.langs[side]))
                     for split, piece, side in taken]
            members = [[piece.members[side], piece.kind] for _, piece, side in taken]

            def action(temporary, archive=archive, members=members):
                return self._fetch_and_extract(archive, members, temporary)

            stamp = stages.run("extract/" + archive.name, members,
                               [archive.name, download.expected_sum(archive, self.sums)], paths, action)
            stamps.append(stamp)
            for (split, piece, side), path in zip(taken, paths):
                made[split, piece.name, side] = (path, stamp["key"])
        raw = {}
        for split, pieces in (("train", train_pieces(self.corpus, self.options.limit)),
                              ("valid", self.corpus.valid), ("test", self.corpus.test)):
            raw[split] = []
            for piece in pieces:
                local = self.options.local.get((split, piece.name))
                if local:
                    raw[split].append((piece, tuple(local), [identity(path) for path in local]))
                else:
                    both = [made[split, piece.name, side] for side in (0, 1)]
                    raw[split].append((piece, tuple(path for path, _ in both), [key for _, key in both]))
        return raw, stamps

    def _fetch_and_extract(self, archive, members, temporary):
        folder = os.path.join(self.options.out, "download")
        for attempt in (1, 2):
            path = download.fetch(archive, folder, self.environ)
            wanted = {member: output + (".in" if kind != "plain" else "")
                      for (member, kind), output in zip(members, temporary)}
            try:
                lines = archives.extract(path, wanted)
                break
            except archives.Damaged as error:
                download.discard(path)
                if attempt == 2:
                    raise DataPrepError("%s, twice; set DATA_PREP_MIRROR to another address" % error) from None
                print("%s; fetching it again" % error, file=sys.stderr)
        counts = {}
        for (member, kind), output in zip(members, temporary):
            name = os.path.basename(member or archive.name)
            if kind == "plain":
                counts[name + " lines"] = lines[output]
            else:
                counts[name + " lines_in"] = lines[output + ".in"]
                counts[name + " lines_out"] = extract_sgm.convert(kind, output + ".in", output)
                remove(output + ".in")
        return counts

    def _tokenise(self, stages, raw):
        """{split: [(source, target) files]}, "keys" of the stages by split, and all "stamps"."""
        result = {"train": [], "valid": [], "test": [], "stamps": [], "keys": {"train": [], "valid": [], "test": []}}
        seen, left = 0, self.options.limit
        for split in ("train", "valid", "test"):
            for piece, files, inputs in raw[split]:
                if split == "train" and left is not None and left <= 0:
                    continue
                normalise = self.corpus.normalise_test if split == "test" else self.corpus.normalise_train
                options = dict(self.text_options, normalise=normalise)
                paths = [stages.path("tok", "%s-%s.%s" % (split, piece.name, lang)) for lang in self.langs]
                picked = [stages.path("tok", "valid-from-%s.%s" % (piece.name, lang)) for lang in self.langs]
                limit = left if split == "train" else None
                every = self.every if split == "train" else 0

                def action(temporary, split=split, piece=piece, files=files, options=options, limit=limit,
                           every=every, seen=seen):
                    return text.process_files(
                        "tokenise %s" % piece.name, files, self.langs, options, temporary[:2], self.options.workers,
                        keep_all=split == "test", limit=limit,
                        valid=(temporary[2:], every, seen) if every else None)

                stamp = stages.run("tokenise/%s-%s" % (split, piece.name),
                                   [list(self.langs), options, limit, every, seen], inputs,
                                   paths + (picked if every else []), action)
                result["stamps"].append(stamp)
                result["keys"][split].append(stamp["key"])
                result[split].append(paths)
                counts = stamp["counts"]
                self._check_text(split, files, counts)
                if every:
                    result["valid"].append(picked)
                    result["keys"]["valid"].append(stamp["key"])
                    seen += counts["pairs_out"] + counts.get("pairs_valid", 0)
                if split == "train" and left is not None:
                    left -= counts["pairs_in"]
        train = [stamp["counts"] for stamp in result["stamps"] if stamp["stage"].startswith("tokenise/train")]
        if not sum(counts["pairs_out"] for counts in train):
            raise DataPrepError("%s: no training pair; give text with at least one" % self.corpus.name)
        if self.every and not sum(counts.get("pairs_valid", 0) for counts in train):
            raise DataPrepError("%s: no valid line, since there are fewer than %d training pairs; give a smaller "
                                "--valid-every" % (self.corpus.name, self.every))
        return result

    @staticmethod
    def _check_text(split, files, counts):
        """Raises DataPrepError for text that no rule about bad lines makes usable."""
        where = "%s text (%s, %s)" % (split, *files)
        for rule, what in (("invalid_utf8", "invalid UTF-8"), ("nul", "NUL")):
            if 2 * counts.get(rule, 0) > counts["pairs_in"]:
                raise DataPrepError("%s: %d of %d pairs hold %s, so this is not UTF-8 text; convert it, e.g. with "
                                    "iconv -f ISO-8859-1 -t UTF-8 or -f UTF-16 -t UTF-8"
                                    % (where, counts[rule], counts["pairs_in"], what))
        if split != "train" and not counts["pairs_out"]:
            raise DataPrepError("%s has no line; give text with at least one, or leave --%s out" % (where, split))

    def _encode(self, stages, tokenised):
        """The stages after tokenisation; returns their stamps."""
        out, workers = self.options.out, self.options.workers
        keys = tokenised["keys"]
        files = [path for pair in tokenised["train"] for path in pair]
        words_path, codes = stages.path("words.txt"), os.path.join(out, "bpe.codes")
        words = stages.run("words", [], keys["train"], [words_path],
                           lambda temporary: bpe.count_words("count words", files, temporary[0], workers))
        # From here on results of an earlier run with other flags are replaced: its manifest would not be true of them.
        remove(os.path.join(out, "manifest.json"))
        learnt = stages.run("learn-bpe", [self.options.bpe_merges], [words["key"]], [codes],
                            lambda temporary: bpe.learn_codes("learn BPE", words_path, temporary[0],
                                                              self.options.bpe_merges))
        stamps, prefixes = [words, learnt], {}
        dictionary = stages.path("dict.txt")
        for split in ("train", "valid", "test"):
            if not tokenised[split]:
                continue
            prefixes[split] = stages.path("bpe", split)
            outputs = ["%s.%s" % (prefixes[split], lang) for lang in self.langs]
            limits = self.corpus.limits if self.corpus.clean == "bpe" and split != "test" else None
            if split == "train":
                outputs.append(dictionary)

            def action(temporary, split=split, limits=limits):
                pieces = collections.Counter() if split == "train" else None
                counts = bpe.encode_files("encode %s" % split, tokenised[split], temporary[:2], codes,
                                          learnt["key"], limits, workers, pieces)
                if not counts["pairs_out"]:  # fairseq cannot read an empty set
                    raise DataPrepError("no %s pair is left after cleaning to %d-%d tokens and ratio %s (%d before); "
                                        "see whether the two sides belong together"
                                        % (split, *self.corpus.limits, counts["pairs_in"]))
                if split == "train":
                    counts["pieces"] = sum(pieces.values())
                    counts.update(write_dictionary(pieces, temporary[2], self.options.threshold))
                return counts

            params = [limits and list(limits)] + ([self.options.threshold] if split == "train" else [])
            stamps.append(stages.run("encode/" + split, params, keys[split] + [learnt["key"]], outputs, action))
        if self.corpus.test:
            stamps.append(self._references(stages, keys["test"]))
        encoded = [stamp["key"] for stamp in stamps if stamp["stage"].startswith("encode/")]
        stamps.append(stages.run(
            "binarise", [list(self.langs)], encoded, [os.path.join(out, "data-bin")],
            lambda temporary: binarise.binarise("binarise", prefixes, self.langs, dictionary, encoded[0], temporary[0],
                                                workers)))
        return stamps

    def _references(self, stages, keys):
        """Puts the untouched test text at OUT/text/test.LANG, for scoring detokenised output."""
        sources = {lang: [] for lang in self.langs}
        for piece in self.corpus.test:
            local = self.options.local.get(("test", piece.name))
            for side, lang in enumerate(self.langs):
                sources[lang].append(local[side] if local else
                                     stages.path("raw", "test-%s.%s" % (piece.name, lang)))

        def action(temporary):
            counts = {}
            for lang, path in zip(self.langs, temporary):
                with open(path, "wb") as result:
                    for data in read_blocks(sources[lang]):
                        result.write(data)
                        counts[lang + "_lines"] = counts.get(lang + "_lines", 0) + data.count(b"\n")
            return counts

        return stages.run("references", [], keys,
                          [os.path.join(self.options.out, "text", "test." + lang) for lang in self.langs], action)

    def _summary(self, stamps):
        for stamp in stamps:
            if stamp["counts"]:
                print("%-28s %s" % (stamp["stage"], ", ".join(
                    "%s %s" % (name, format(value, ",")) for name, value in sorted(stamp["counts"].items()))),
                    file=sys.stderr)
        print("ready: %s" % os.path.join(self.options.out, "data-bin"), file=sys.stderr)
