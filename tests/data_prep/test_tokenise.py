"""The fast normaliser and tokeniser against the scripts' rules written out, Moses' own output, and sacremoses."""
import gzip
import random

import moses_reference as reference
import pytest
from sacremoses import MosesTokenizer

from data_prep.normalise import normalise_punctuation, remove_non_printing
from data_prep.text import process_text
from data_prep.tokenise import Tokeniser, tokeniser
from prep_support import SHARED

#: Pieces that meet every rule, joined at random.
PIECES = list("aabZ\xe9'\u2019\u2018`\"\"..,,,-- 159%()[]<>&|:;!?\xab\xbb\xa0\u2026\u201c\u201d\u201e\u2013\u2014\xb4\xba"
              "\u2167\xbd\xb2s\u0301\u0939\u093f\u094d\U0001F600\U0001D7D8\u200b\u3000\ufeff\x01\t") + [
    "Dr. ", "No. ", "no. 5", "art. ", "U.S. ", " 's ", "n'", "n\xba\xa0", "\xa0%", "\xa0\xbb", "\xab\xa0", "...", "'' ",
    "l'", "\xa0cm"]

#: What Moses' perl scripts (master of 2022, perl 5.36) give for these lines.
MOSES = {
    "en": [
        ("He said \u201chello\u201d, didn't he?", "He said &quot; hello , &quot; didn &apos;t he ?"),
        ("It's the U.S. of No. 5 and Dr. Who etc. today.", "It &apos;s the U.S. of No. 5 and Dr. Who etc. today ."),
        ("A well-known 1990's 5,300 a,b [x] a|b <i> & co...", "A well @-@ known 1990 &apos;s 5,300 a , b &#91; x &#93; "
         "a &#124; b &lt; i &gt; &amp; co ..."),
    ],
    "fr": [
        ("L'homme de l\u2019art.", "L&apos; homme de l&apos; art ."),
        ("Les \xab\xa0fans\xa0\xbb C U B S .", "Les &quot; fans &quot; C U B S ."),
        ("Il co\xfbte 10\xa0000\xa0%\xa0; vraiment\xa0?", "Il co\xfbte 10,000 % ; vraiment ?"),
    ],
    "de": [
        ("\u201eJa\u201c, sagte Hr. Schmidt am 3. Mai.", "&quot; Ja &quot; , sagte Hr . Schmidt am 3. Mai ."),
    ],
}


@pytest.mark.parametrize("lang", ["en", "fr", "de"])
def test_equals_the_rules_on_random_lines(lang):
    rng = random.Random(5)
    lines = ["".join(rng.choice(PIECES) for _ in range(rng.randint(1, 24))) for _ in range(3000)]
    known = reference.prefixes(lang)
    normalised = [reference.normalise(line, lang) for line in lines]
    block = "".join(line + "\n" for line in lines)
    assert normalise_punctuation(block, lang).split("\n")[:-1] == normalised
    printing = [reference.remove_non_printing(line) for line in normalised]
    assert remove_non_printing(normalise_punctuation(block, lang)).split("\n")[:-1] == printing
    for aggressive in (True, False):
        expected = [reference.tokenise(line, lang, aggressive, known) for line in printing]
        assert process_text(block, lang, True, aggressive, False).split("\n")[:-1] == expected


@pytest.mark.parametrize("lang", ["en", "fr", "de"])
def test_raw_control_characters_in_test_text(lang):
    """Test sets go through the tokeniser alone, which drops control characters itself."""
    rng = random.Random(6)
    pieces = PIECES + ["\0", "\x1c", "\r", "\x0b", "\x85", "\u2028"]
    lines = ["".join(rng.choice(pieces) for _ in range(rng.randint(1, 24))) for _ in range(2000)]
    known = reference.prefixes(lang)
    expected = [reference.tokenise(line, lang, True, known) for line in lines]
    assert tokeniser(lang)("".join(line + "\n" for line in lines)).split("\n")[:-1] == expected


@pytest.mark.parametrize("lang,line,expected", [(lang, *pair) for lang in MOSES for pair in MOSES[lang]])
def test_moses_lines(lang, line, expected):
    assert process_text(line + "\n", lang, True, True, False) == expected + "\n"


@pytest.mark.parametrize("lang", ["en", "fr"])
@pytest.mark.parametrize("name", ["train", "val", "test_2016_flickr"])
def test_equals_moses_perl_on_multi30k(lang, name):
    """No line of Multi30k differs from what Moses' perl scripts made of it."""
    folder = SHARED / "data" / "multi30k_en_fr"
    if not (folder / "moses").is_dir():
        pytest.skip("no Multi30k with Moses' output at %s (set REALFORMER_SHARED)" % folder)
    raw = gzip.open(folder / ("%s.%s.gz" % (name, lang))).read().decode("utf-8")
    expected = gzip.open(folder / "moses" / ("%s.tok.%s.gz" % (name, lang))).read().decode("utf-8")
    assert process_text(raw, lang, True, True, False) == expected


def test_differs_from_sacremoses_only_where_moses_does():
    """sacremoses keeps the period of a last word that is an abbreviation; Moses splits it."""
    theirs = MosesTokenizer("fr")
    same = "Un homme, vu de l'arri\xe8re (peut-\xeatre), marche."
    assert theirs.tokenize(same, aggressive_dash_splits=True, return_str=True) + "\n" == tokeniser("fr")(same + "\n")
    last = "Une galerie d'art."
    assert theirs.tokenize(last, aggressive_dash_splits=True, return_str=True).endswith(" art.")
    assert tokeniser("fr")(last + "\n").endswith(" art .\n")


def test_block_size_does_not_matter():
    rng = random.Random(8)
    lines = ["".join(rng.choice(PIECES) for _ in range(20)) + "\n" for _ in range(300)]
    one_by_one = "".join(process_text(line, "fr", True, True, False) for line in lines)
    assert process_text("".join(lines), "fr", True, True, False) == one_by_one


def test_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="fi"):
        Tokeniser("fi")
    with pytest.raises(ValueError, match="line end"):
        tokeniser("en")("no end")


@pytest.mark.parametrize("lang", ["en", "fr"])
def test_long_runs(lang):
    """Rows of periods, as tables of contents have them, with and without a quotation mark."""
    rng = random.Random(8)
    pieces = ["." * 70, ".", ".", '"', '"', "<", " ", "a", "\t", "DOT"]
    lines = ["".join(rng.choice(pieces) for _ in range(rng.randint(1, 15))) for _ in range(3000)]
    known = reference.prefixes(lang)
    printing = [reference.remove_non_printing(reference.normalise(line, lang)) for line in lines]
    expected = [reference.tokenise(line, lang, True, known) for line in printing]
    assert process_text("".join(line + "\n" for line in lines), lang, True, True, False).split("\n")[:-1] == expected
    # 60,000 periods: went round once a period, over the whole block.
    row = "." * 60000
    assert process_text('"b ' + row + "\nb\n", lang, True, True, False) == "&quot; b %s\nb\n" % row


def test_languages_without_their_rules():
    for lang in ("fi", "sv", "ca", "tdt"):
        with pytest.raises(ValueError, match="tokenise the text yourself"):
            Tokeniser(lang)
