"""Perl's Unicode character classes, as the Moses scripts use them.

Perl's ``\\p{IsAlnum}`` is the Unicode property Alphabetic plus decimal digits (so it holds combining vowel
signs), which is neither Python's ``str.isalnum`` nor ``\\w``. The third-party ``regex`` module knows the same
properties; the sets are listed once with it and then compiled for the much faster standard ``re``.

Source: perldoc perluniprops (XPosixAlnum, XPosixAlpha, XPosixLower, General_Category=N and C, White_Space).
"""
import functools
import sys

import regex

#: Perl's ``\\s`` under Unicode rules (the property White_Space). Python's ``\\s`` adds U+001C..U+001F to it.
WHITE_SPACE = frozenset(
    "\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B))))

_PROPERTIES = {
    "alnum": r"[\p{Alphabetic}\p{Nd}]",
    "alpha": r"\p{Alphabetic}",
    "lower": r"\p{Lowercase}",
    "number": r"\p{N}",
    "other": r"\p{C}",
}


@functools.lru_cache(maxsize=None)
def members(name):
    """All characters of the class `name` (alnum, alpha, lower, number, other), as a frozenset.

    Raises KeyError for an unknown name.
    """
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    return frozenset(regex.findall(_PROPERTIES[name], everything))


@functools.lru_cache(maxsize=None)
def is_member(name, char):
    """Whether `char` is of the class `name`; cheaper than `members` for the few characters of a text."""
    return regex.match(_PROPERTIES[name], char) is not None


@functools.lru_cache(maxsize=None)
def ranges(*names):
    """The union of the named classes as the inside of an ``re`` character set, e.g. ``\\u0030-\\u0039...``."""
    codes = sorted(set().union(*(map(ord, members(name)) for name in names)))
    spans = []
    for code in codes:
        if spans and code == spans[-1][1] + 1:
            spans[-1][1] = code
        else:
            spans.append([code, code])
    return "".join("\\U%08x-\\U%08x" % (first, last) for first, last in spans)
