"""Moses' normalize-punctuation.perl and remove-non-printing-char.perl, many lines at a time.

Each function takes and returns a string of whole lines, every one ended by ``\\n``, and keeps their number.
A rule of the perl scripts is a plain ``str.replace`` over the whole block wherever that means the same, since
that runs at memory speed; the others are regular expressions that cannot match across a line end.

The perl normaliser reads bytes: its ``\\d``, ``\\s`` and ``[a-z]`` are ASCII only, and so are they here.
Source: github.com/moses-smt/mosesdecoder scripts/tokenizer/{normalize-punctuation,remove-non-printing-char}.perl
"""
import re

from data_prep import charclasses

NBSP = "\xa0"
_DIGIT_PERCENT = re.compile(r" %(?<=[0-9] %)")
_LETTER_QUOTE = [re.compile("([a-zA-Z])%s([a-zA-Z])" % quote) for quote in "\u2018\u2019"]
_ENGLISH_COMMA = re.compile(r'"([,.]+)')
# Perl's (\.+)"(\s*[^<]) sees the line's own end as one more character that is not "<".
_AFTER_QUOTE = r'"([ \t\f\v]*[^< \t\f\v\n]|[ \t\f\v]+|(?=\n))'
_OTHER_PERIOD = re.compile(r"(\.+)" + _AFTER_QUOTE)
# The same, but a run of periods without a quote is passed over as a whole: else a search starts at each of them.
_OTHER_PERIODS = re.compile(r"(\.+)(?:%s)?" % _AFTER_QUOTE)
_LONG_RUN = "." * 64
_DIGIT_SPACE = re.compile("([0-9])%s([0-9])" % NBSP)
_BEFORE_LANGUAGE = [
    # Order matters: it is the script's.
    ("\u201e", '"'), ("\u201c", '"'), ("\u201d", '"'), ("\u2013", "-"), ("\u2014", " - "), ("  ", None),
    ("\xb4", "'"), ("\u2018", _LETTER_QUOTE[0]), ("\u2019", _LETTER_QUOTE[1]),
    ("\u2018", '"'), ("\u201a", '"'), ("\u2019", '"'), ("''", '"'), ("\u2026", "..."),
    (NBSP + "\xab" + NBSP, ' "'), ("\xab" + NBSP, '"'), ("\xab", '"'),
    (NBSP + "\xbb" + NBSP, '" '), (NBSP + "\xbb", '"'), ("\xbb", '"'),
    (NBSP + "%", "%"), ("n\xba" + NBSP, "n\xba "), (NBSP + ":", ":"), (NBSP + "\xbaC", " \xbaC"),
    (NBSP + "cm", " cm"), (NBSP + "?", "?"), (NBSP + "!", "!"), (NBSP + ";", ";"), ("," + NBSP, ", "),
    ("  ", None),
]


def squeeze_spaces(text):
    """Every run of U+0020 becomes one."""
    while "  " in text:
        text = text.replace("  ", " ")
    return text


def _quote_first(match):
    return match.group() if match.group(2) is None else '"' + match.group(1) + match.group(2)


def normalise_punctuation(text, lang):
    """``normalize-punctuation.perl -l LANG`` on the lines of `text`.

    text: lines, each ended by ``\\n``. lang: two-letter code; en, cs/cz and the rest have their own quotation
    rules, and de, es, cs, cz, fr write a digit group's no-break space as a comma. Returns as many lines.
    """
    text = text.replace("\r", "")
    if "(" in text or ")" in text:
        text = text.replace("(", " (").replace(")", ") ")
        text = squeeze_spaces(text)
        for mark in ".!:?;,":
            text = text.replace(") " + mark, ")" + mark)
        text = text.replace("( ", "(").replace(" )", ")")
    else:
        text = squeeze_spaces(text)
    text = _DIGIT_PERCENT.sub("%", text)
    text = text.replace(" :", ":").replace(" ;", ";").replace("`", "'").replace("''", ' " ')
    for old, new in _BEFORE_LANGUAGE:
        if new is None:
            text = squeeze_spaces(text)
        elif isinstance(new, str):
            text = text.replace(old, new)
        elif old in text:
            text = new.sub(r"\1'\2", text)
    if '"' in text:
        if lang == "en":
            text = _ENGLISH_COMMA.sub(r'\1"', text)
        elif lang not in ("cs", "cz"):
            text = text.replace(',"', '",')
            if _LONG_RUN in text:
                text = _OTHER_PERIODS.sub(_quote_first, text)
            else:
                text = _OTHER_PERIOD.sub(r'"\1\2', text)
    if NBSP in text:
        mark = "," if lang in ("de", "es", "cz", "cs", "fr") else "."
        text = _DIGIT_SPACE.sub(r"\1%s\2" % mark, text)
    return text


def remove_non_printing(text):
    """``remove-non-printing-char.perl``: every character of Unicode category C but the line end becomes a space."""
    for char in set(text):
        if charclasses.is_member("other", char) and char != "\n":
            text = text.replace(char, " ")
    return text
