"""Plain text out of the sgm and xml files of the WMT and IWSLT sets.

The rules are those of the published fairseq recipes (grep and sed lines): only lines with ``<seg id`` count, the
tags and the white space around the text go, a right single quotation mark becomes an apostrophe. Entities such
as ``&amp;`` stay as they are, as they do there.
"""
import os
import re

from data_prep.progress import Progress

_SEG = re.compile(r'<seg id="[0-9]*">\s*')
_TAG_LINES = ("<url>", "<talkid>", "<keywords>")
_TAGS = re.compile(r"</?(?:title|description)>")


def segments(lines):
    """Yields the text of each ``<seg id=...>`` line of `lines`."""
    for line in lines:
        if "<seg id" in line:
            yield _without_end(_SEG.sub("", line)).strip("\n").replace("\u2019", "'")


def _without_end(line):
    r"""`line` without ``\s*</seg>\s*``; as a regular expression it would be slow on a long run of spaces."""
    parts = line.split("</seg>")
    for place in range(1, len(parts)):
        parts[place - 1], parts[place] = parts[place - 1].rstrip(), parts[place].lstrip()
    return "".join(parts)


def tagged_lines(lines):
    """Yields the sentences of an IWSLT train.tags file: no url, talkid or keywords lines, no title tags."""
    for line in lines:
        if not any(tag in line for tag in _TAG_LINES):
            yield _TAGS.sub("", line).rstrip("\n")


def convert(kind, source, output):
    """Writes the plain text of the file `source` to `output`; kind is "sgm" or "tags". Returns the line count."""
    rule = {"sgm": segments, "tags": tagged_lines}[kind]
    count, progress = 0, Progress("extract %s" % os.path.basename(output))
    with open(source, encoding="utf-8", errors="surrogateescape", newline="\n") as lines, \
            open(output, "w", encoding="utf-8", errors="surrogateescape", newline="\n") as out:
        for count, text in enumerate(rule(lines), 1):
            out.write(text + "\n")
            if not count % 1000:
                progress.add(1000)
    progress.add(count - progress.count)
    progress.done()
    return count
