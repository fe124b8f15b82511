"""The Moses scripts' rules, one line and one rule at a time: the reference that the fast code is held against.

Written from the definition (normalize-punctuation.perl, remove-non-printing-char.perl, tokenizer.perl 1.1), with
the `regex` module's Unicode properties in the place of Perl's, and nothing shared with data_prep.
"""
import regex
from sacremoses.corpus import NonbreakingPrefixes

NBSP = "\xa0"
ALNUM, ALPHA, NUM, LOWER = r"\p{Alphabetic}\p{Nd}", r"\p{Alphabetic}", r"\p{N}", r"\p{Lowercase}"
SPACE = r"[\p{White_Space}]"


def normalise(line, lang):
    """One line without its end."""
    line += "\n"  # the script leaves the line end in place, and some rules see it
    for pattern, new in [
            ("\r", ""), (r"\(", " ("), (r"\)", ") "), (" +", " "), (r"\) ([.!:?;,])", r")\1"), (r"\( ", "("),
            (r" \)", ")"), ("([0-9]) %", r"\1%"), (" :", ":"), (" ;", ";"), ("`", "'"), ("''", ' " '),
            ("\u201e", '"'), ("\u201c", '"'), ("\u201d", '"'), ("\u2013", "-"), ("\u2014", " - "), (" +", " "),
            ("\xb4", "'"), ("([a-zA-Z])\u2018([a-zA-Z])", r"\1'\2"), ("([a-zA-Z])\u2019([a-zA-Z])", r"\1'\2"),
            ("\u2018", '"'), ("\u201a", '"'), ("\u2019", '"'), ("''", '"'), ("\xb4\xb4", '"'), ("\u2026", "..."),
            (NBSP + "\xab" + NBSP, ' "'), ("\xab" + NBSP, '"'), ("\xab", '"'), (NBSP + "\xbb" + NBSP, '" '),
            (NBSP + "\xbb", '"'), ("\xbb", '"'), (NBSP + "%", "%"), ("n\xba" + NBSP, "n\xba "), (NBSP + ":", ":"),
            (NBSP + "\xbaC", " \xbaC"), (NBSP + "cm", " cm"), (NBSP + r"\?", "?"), (NBSP + "!", "!"),
            (NBSP + ";", ";"), ("," + NBSP, ", "), (" +", " ")]:
        line = regex.sub(pattern, new, line)
    if lang == "en":
        line = regex.sub(r'"([,.]+)', r'\1"', line)
    elif lang not in ("cs", "cz"):
        line = regex.sub(',"', '",', line)
        line = regex.sub(r'(\.+)"([ \t\n\r\f\v]*[^<])', r'"\1\2', line, flags=regex.DOTALL)
    mark = "," if lang in ("de", "es", "cz", "cs", "fr") else "."
    line = regex.sub("([0-9])" + NBSP + "([0-9])", r"\1%s\2" % mark, line)
    return line[:-1]


def remove_non_printing(line):
    """One line without its end."""
    return regex.sub(r"\p{C}", " ", line)


def prefixes(lang):
    """{prefix: 1 or 2} as load_prefixes fills it."""
    found = {}
    for item in NonbreakingPrefixes().words(lang):
        match = regex.match(r"(.*)[\s]+(\#NUMERIC_ONLY\#)", item)
        found[match.group(1) if match else item] = 2 if match else 1
    return found


def tokenise(line, lang, aggressive=True, known=None):
    """One line without its end; a blank one gives ""."""
    if regex.fullmatch(SPACE + "*", line):
        return ""
    known = prefixes(lang) if known is None else known
    text = regex.sub(SPACE + "+", " ", " " + line + " ")
    text = regex.sub(r"[\x00-\x1f]", "", text)
    for pattern, new in [(" +", " "), ("^ ", ""), (" $", "")]:
        text = regex.sub(pattern, new, text)
    text = regex.sub(r"([^" + ALNUM + r"\p{White_Space}.'`,\-])", r" \1 ", text)
    if aggressive:
        text = regex.sub(r"([%s])\-(?=[%s])" % (ALNUM, ALNUM), r"\1 @-@ ", text)
    text = regex.sub(r"\.([.]+)", r" DOTMULTI\1", text)
    while "DOTMULTI." in text:
        text = regex.sub(r"DOTMULTI\.([^.])", r"DOTDOTMULTI \1", text)
        text = text.replace("DOTMULTI.", "DOTDOTMULTI")
    for pattern, new in [("([^%s])[,]" % NUM, r"\1 , "), ("[,]([^%s])" % NUM, r" , \1"), ("([%s])[,]$" % NUM, r"\1 ,")]:
        text = regex.sub(pattern, new, text)
    not_alpha = r"([^%s])[']([^%s])" % (ALPHA, ALPHA), r"\1 ' \2"
    if lang == "en":
        rules = [not_alpha, (r"([^%s%s])[']([%s])" % (ALPHA, NUM, ALPHA), r"\1 ' \2"),
                 (r"([%s])[']([^%s])" % (ALPHA, ALPHA), r"\1 ' \2"), (r"([%s])[']([%s])" % (ALPHA, ALPHA), r"\1 '\2"),
                 (r"([%s])[']([s])" % NUM, r"\1 '\2")]
    elif lang in ("fr", "it", "ga"):
        rules = [not_alpha, (r"([^%s])[']([%s])" % (ALPHA, ALPHA), r"\1 ' \2"),
                 (r"([%s])[']([^%s])" % (ALPHA, ALPHA), r"\1 ' \2"), (r"([%s])[']([%s])" % (ALPHA, ALPHA), r"\1' \2")]
    else:
        rules = [("'", " ' ")]
    for pattern, new in rules:
        text = regex.sub(pattern, new, text)
    words = regex.split(SPACE, text)
    while words and not words[-1]:
        words.pop()
    result = ""
    for number, word in enumerate(words):
        match = regex.fullmatch(r"(\S+)\.", word)
        if match:
            before, after = match.group(1), words[number + 1] if number + 1 < len(words) else None
            if after is None:
                word = before + " ."
            elif ("." in before and regex.search(r"\p{Alphabetic}", before)) or known.get(before) == 1 \
                    or regex.match("[%s]" % LOWER, after):
                pass
            elif known.get(before) == 2 and regex.match("[0-9]", after):
                pass
            else:
                word = before + " ."
        result += word + " "
    for pattern, new in [(" +", " "), ("^ ", ""), (" $", ""), (r"\.' ?$", " . ' ")]:
        result = regex.sub(pattern, new, result)
    while "DOTDOTMULTI" in result:
        result = result.replace("DOTDOTMULTI", "DOTMULTI.")
    result = result.replace("DOTMULTI", ".")
    for char, entity in [("&", "&amp;"), ("|", "&#124;"), ("<", "&lt;"), (">", "&gt;"), ("'", "&apos;"),
                         ('"', "&quot;"), ("[", "&#91;"), ("]", "&#93;")]:
        result = result.replace(char, entity)
    return result
