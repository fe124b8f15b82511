"""What is done about bytes that could break a line or shift a pair.

The rules, for a pair of lines (files are only ever split at ``\\n``):

==================  =============================================================================================
invalid UTF-8       training and valid text: the pair is emptied, and dropped when the text is cleaned; test
                    text: each bad byte becomes U+FFFD, since a test set must keep all its lines
over-long line      more than 65,536 bytes: the pair is emptied
NUL                 becomes a space, as Moses' remove-non-printing-char.perl has it (test text: removed)
lone CR             removed, as Moses' normalize-punctuation.perl has it (test text: becomes a space)
U+2028 and kin      U+2028, U+2029, U+0085, form feed and vertical tab become a space
empty side          kept in place, and dropped when the text is cleaned
==================  =============================================================================================

An emptied pair stays in the file, so that the numbering that picks the valid lines does not depend on it.
"""
import re

_LONE_CR = re.compile("\r(?!\n)")
_SEPARATORS = re.compile("[\u2028\u2029\x85\x0b\x0c]")
_EMPTY = re.compile(r"^[^\S\n]*$", re.MULTILINE)


def decode_pair(source, target, keep_all):
    """Decodes two blocks of as many lines; returns (source text, target text, counts).

    source, target: bytes, every line ended by ``\\n``. keep_all: a test set, see the table. counts: how many
    pairs each rule applied to: invalid_utf8, nul, lone_cr, line_separator, empty_side.
    """
    counts = {}
    try:
        texts = [source.decode("utf-8"), target.decode("utf-8")]
    except UnicodeDecodeError:
        texts, counts["invalid_utf8"] = _decode_lines(source, target, keep_all)
    for name, needed, pattern in (("nul", "\0", re.compile("\0")), ("lone_cr", "\r", _LONE_CR),
                                  ("line_separator", None, _SEPARATORS)):
        if any(needed is None or needed in text for text in texts) and any(map(pattern.search, texts)):
            pairs = zip(*(text.split("\n") for text in texts))
            counts[name] = sum(bool(any(pattern.search(line + "\n") for line in pair)) for pair in pairs)
    if any(text.startswith("\n") or "\n\n" in text or _EMPTY.search(text, 0, len(text) - 1) for text in texts):
        pairs = list(zip(*(text.split("\n") for text in texts)))[:-1]
        empty = sum(any(not line.strip() for line in pair) for pair in pairs)
        if empty:
            counts["empty_side"] = empty
    return texts[0], texts[1], counts


def _decode_lines(source, target, keep_all):
    texts, bad = ([], []), 0
    for pair in zip(source.split(b"\n"), target.split(b"\n")):
        try:
            decoded = [line.decode("utf-8") for line in pair]
        except UnicodeDecodeError:
            bad += 1
            decoded = [line.decode("utf-8", "replace") for line in pair] if keep_all else ["", ""]
        texts[0].append(decoded[0])
        texts[1].append(decoded[1])
    return ["\n".join(lines) for lines in texts], bad
