"""Moses' tokenizer.perl, many lines at a time.

The rules and their order are the script's; what differs is that each rule runs once over a block of lines. A
regular expression here starts with the literal character it is about (``'(?<=[..]')`` rather than ``(?<=[..])'``)
so that the engine can skip to it. Where the script's rules interact (apostrophes next to one another, runs of
commas), the lines concerned go through the script's own expressions one after the other instead.

Source: github.com/moses-smt/mosesdecoder scripts/tokenizer/tokenizer.perl (version 1.1). The abbreviation lists
are those of sacremoses, which carries Moses'.
"""
import functools
import re

from sacremoses.corpus import NonbreakingPrefixes

from data_prep import charclasses
from data_prep.normalise import squeeze_spaces

_KEPT = frozenset(".'`,-")
_NUMERIC_ONLY = re.compile(r"(.*)\s+#NUMERIC_ONLY#")
_DOTS = re.compile(r"\.\.+(\n?)")
# The script replaces one DOT a round, which takes minutes for a line that is one long row of periods.
_DOT_WORDS = re.compile("(?<!DOT)(?:DOT)+MULTI")
_CLOSE_APOSTROPHES = re.compile(r"'.?'")
_ESCAPES = [("&", "&amp;"), ("|", "&#124;"), ("<", "&lt;"), (">", "&gt;"), ("'", "&apos;"), ('"', "&quot;"),
            ("[", "&#91;"), ("]", "&#93;")]
_SPLIT_LEFT = ("fr", "it", "ga")
_NO_SPLIT = ("so",)
_OWN_RULES = ("fi", "sv", "ca", "tdt")


def check_language(lang):
    """Raises ValueError for a language whose rules in Moses are not here."""
    if lang in _OWN_RULES:
        raise ValueError("language %s: Moses has rules for it that are not available here; tokenise the text "
                         "yourself" % lang)


def nonbreaking_prefixes(lang):
    """{abbreviation: 1, or 2 where it only holds before a digit} of `lang`; English where Moses has no list."""
    prefixes = {}
    for line in NonbreakingPrefixes().words(lang):
        numeric = _NUMERIC_ONLY.match(line)
        if numeric:
            prefixes[numeric.group(1)] = 2
        else:
            prefixes[line] = 1
    return prefixes


def _pattern(template):
    """Compiles `template` with {A} for letters, {N} for numbers and {W} for letters and digits filled in."""
    return re.compile(template.replace("{A}", charclasses.ranges("alpha"))
                      .replace("{AN}", charclasses.ranges("alpha", "number"))
                      .replace("{N}", charclasses.ranges("number"))
                      .replace("{W}", charclasses.ranges("alnum")))


class Tokeniser:
    """``tokenizer.perl -l LANG`` with or without ``-a``, on blocks of lines.

    lang: two-letter code. aggressive: split hyphens between letters or digits into ``@-@`` (Moses' ``-a``).
    Finnish, Swedish, Catalan and Tetum have rules of their own in Moses that are not here: ValueError.
    """

    def __init__(self, lang, aggressive=True):
        check_language(lang)
        self.lang = lang
        self.aggressive = aggressive
        self.prefixes = nonbreaking_prefixes(lang)
        self.alnum = charclasses.members("alnum")
        self.alpha = charclasses.members("alpha")
        self.lower = charclasses.members("lower")
        self.hyphen = _pattern(r"-(?=[{W}])(?<=[{W}]-)")
        self.comma = _pattern(r",(?:(?![{N}])|(?<=[^{N}\n],))")
        self.commas = [(_pattern(r"([^{N}\n]),"), r"\1 , "), (_pattern(r",([^{N}\n])"), r" , \1"),
                       (_pattern(r"([{N}]),$"), r"\1 ,")]
        if lang == "en":
            self.apostrophe = [
                (_pattern(r"'(?:(?<=[^{A}\n]')(?=[^{A}\n])|(?<=[^{AN}\n]')(?=[{A}])|(?<=[{A}]')(?=[^{A}\n]))"),
                 " ' "),
                (_pattern(r"'(?:(?<=[{A}]')(?=[{A}])|(?<=[{N}]')(?=s))"), " '")]
            self.apostrophes = [
                (_pattern(r"([^{A}])'([^{A}])"), r"\1 ' \2"), (_pattern(r"([^{AN}])'([{A}])"), r"\1 ' \2"),
                (_pattern(r"([{A}])'([^{A}])"), r"\1 ' \2"), (_pattern(r"([{A}])'([{A}])"), r"\1 '\2"),
                (_pattern(r"([{N}])'(s)"), r"\1 '\2")]
        elif lang in _SPLIT_LEFT or lang in _NO_SPLIT:
            self.apostrophe = [
                (_pattern(r"'(?:(?<=[^{A}\n]')(?!\n)|(?<=[{A}]')(?=[^{A}\n]))"), " ' ")]
            self.apostrophes = [
                (_pattern(r"([^{A}])'([^{A}])"), r"\1 ' \2"), (_pattern(r"([^{A}])'([{A}])"), r"\1 ' \2"),
                (_pattern(r"([{A}])'([^{A}])"), r"\1 ' \2")]
            if lang in _SPLIT_LEFT:
                self.apostrophe.append((_pattern(r"'(?<=[{A}]')(?=[{A}])"), "' "))
                self.apostrophes.append((_pattern(r"([{A}])'([{A}])"), r"\1' \2"))
        else:
            self.apostrophe = None

    def __call__(self, text):
        """Tokenises `text`, lines each ended by ``\\n``; returns as many lines, tokens apart by one space.

        Raises ValueError where the last line has no end: the rules need it.
        """
        if not text:
            return text
        if not text.endswith("\n"):
            raise ValueError("the last line has no line end")
        text = self._separate_specials(self._clean_spaces(text))
        if self.aggressive:
            text = self.hyphen.sub(" @-@ ", text)
        text = _DOTS.sub(_multi_dots, text)
        if ",," in text:
            text = _on_lines(text, re.compile(",,"), self._commas_by_script, self._commas)
        else:
            text = self._commas(text)
        if "'" in text:
            if self.apostrophe is None:
                text = text.replace("'", " ' ")
            else:
                text = _on_lines(text, _CLOSE_APOSTROPHES, self._apostrophes_by_script, self._apostrophes)
        text = self._final_periods(text)
        text = _strip_lines(squeeze_spaces(text))
        text = text.replace(".'\n", " . ' \n")
        if "DOTMULTI" in text:
            text = _DOT_WORDS.sub(lambda match: "." * (len(match.group()) // 3 - 1), text)
        for char, entity in _ESCAPES:
            text = text.replace(char, entity)
        return text

    @staticmethod
    def _clean_spaces(text):
        chars = set(text)
        for char in chars & charclasses.WHITE_SPACE:
            if char not in " \n":
                text = text.replace(char, " ")
        # Perl first makes each run of white space one space, and only then drops the control characters.
        text = squeeze_spaces(text)
        for char in chars:
            if char < " " and char != "\n":
                text = text.replace(char, "")
        return _strip_lines(squeeze_spaces(text))

    def _separate_specials(self, text):
        for char in set(text) - self.alnum - charclasses.WHITE_SPACE - _KEPT:
            text = text.replace(char, " " + char + " ")
        return text

    def _commas(self, text):
        return self.comma.sub(" , ", text)

    def _commas_by_script(self, line):
        for pattern, replacement in self.commas:
            line = pattern.sub(replacement, line)
        return line

    def _apostrophes(self, text):
        for pattern, replacement in self.apostrophe:
            text = pattern.sub(replacement, text)
        return text

    def _apostrophes_by_script(self, line):
        for pattern, replacement in self.apostrophes:
            line = pattern.sub(replacement, line)
        return line

    def _final_periods(self, text):
        """Splits the period off a word, unless an abbreviation list or the next word says that it belongs to it."""
        pieces, done = [], 0
        at = text.find(". ")
        while at >= 0:
            start = max(text.rfind(" ", done, at), text.rfind("\n", done, at), done - 1) + 1
            if at > start:
                # A second space after the period is, to the script's split, an empty next word.
                word, following = text[start:at], text[at + 2]
                kind = self.prefixes.get(word)
                keep = (("." in word and not self.alpha.isdisjoint(word)) or kind == 1
                        or following in self.lower or (kind == 2 and following in "0123456789"))
                if not keep:
                    pieces.append(text[done:at])
                    pieces.append(" .")
                    done = at + 1
            at = text.find(". ", at + 1)
        pieces.append(text[done:])
        return "".join(pieces).replace(".\n", " .\n")


def _multi_dots(match):
    count = len(match.group().rstrip("\n"))
    return " " + "DOT" * count + "MULTI" + (match.group(1) or " ")


def _strip_lines(text):
    """`text` (single spaces only) without a space at either end of a line."""
    return text.replace(" \n", "\n").replace("\n ", "\n").lstrip(" ")


def _on_lines(text, pattern, special, ordinary):
    """`special` on each line (without its end) that `pattern` is found in, `ordinary` on the blocks between."""
    pieces, done = [], 0
    match = pattern.search(text)
    while match:
        start = text.rfind("\n", 0, match.start()) + 1
        end = text.index("\n", match.start())
        pieces.append(ordinary(text[done:start]))
        pieces.append(special(text[start:end]))
        done = end
        match = pattern.search(text, end)
    pieces.append(ordinary(text[done:]))
    return "".join(pieces)


@functools.lru_cache(maxsize=None)
def tokeniser(lang, aggressive=True):
    """A `Tokeniser`, built once a process."""
    return Tokeniser(lang, aggressive)
