"""The corpora: where they come from, what is taken from them, and the recipe each is prepared by.

Addresses and members are those of the published fairseq recipes (prepare-wmt14en2fr.sh, prepare-wmt14en2de.sh,
prepare-iwslt14.sh). Sizes and sha256 of the WMT training archives are those that tensorflow-datasets records for the
same addresses; those of Multi30k belong to the files whose MD5 torchtext records; the MD5 of the WMT test sets is
sacreBLEU's.
"""
import dataclasses
from typing import Optional, Tuple


@dataclasses.dataclass(frozen=True)
class Archive:
    """A published file. size in bytes, sha256 and md5 are None where nobody has published them.

    others: further addresses, ending in the same name, tried where the first fails.
    """
    url: str
    size: Optional[int] = None
    sha256: Optional[str] = None
    md5: Optional[str] = None
    others: Tuple[str, ...] = ()

    @property
    def name(self):
        """The file's own name, the address's last part."""
        return self.url.rsplit("/", 1)[1]


@dataclasses.dataclass(frozen=True)
class Piece:
    """One pair of files inside archives.

    archives and members: for source and target, which archive holds the file and under what name ("" for a .gz
    on its own). kind: "plain", "sgm" or "tags". pairs: roughly how many, so that a trial with --limit need not
    fetch the archives it will not read.
    """
    name: str
    archives: Tuple[Archive, Archive]
    members: Tuple[str, str]
    kind: str = "plain"
    pairs: int = 0


@dataclasses.dataclass(frozen=True)
class Corpus:
    """What one entry point prepares.

    train, valid, test: Pieces; without valid, every `valid_every`-th training line is it. normalise_train,
    normalise_test: whether punctuation is normalised and non-printing characters removed. aggressive: Moses' -a.
    clean: "bpe" (after BPE) or "words" (before the valid split), to shortest..longest and ratio. disk_gb: what
    the whole thing takes at its peak, roughly, for --dry-run and the documentation.
    """
    name: str
    langs: Tuple[str, str]
    train: Tuple[Piece, ...]
    test: Tuple[Piece, ...] = ()
    valid: Tuple[Piece, ...] = ()
    valid_every: int = 1333
    bpe_merges: int = 40000
    normalise_train: bool = True
    normalise_test: bool = False
    aggressive: bool = True
    lowercase: bool = False
    clean: str = "bpe"
    limits: Tuple[int, int, float] = (1, 250, 1.5)
    disk_gb: float = 0.0


_EUROPARL = Archive("http://statmt.org/wmt13/training-parallel-europarl-v7.tgz", 657632379,
                    "0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7")
_COMMONCRAWL = Archive("http://statmt.org/wmt13/training-parallel-commoncrawl.tgz", 918311367,
                       "c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5")
_UN = Archive("http://statmt.org/wmt13/training-parallel-un.tgz", 2365634246,
              "29141b5c1eba149a94f7a59d3b1a834b2e47fe0f8758d68dcd77a3d3f497ee47")
_NEWS_V9 = Archive("http://statmt.org/wmt14/training-parallel-nc-v9.tgz", 80418416,
                   "cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485")
_NEWS_V12 = Archive("http://data.statmt.org/wmt17/translation-task/training-parallel-nc-v12.tgz", 168591139,
                    "2b45f30ef1d550d302fd17dd3a5cbe19134ccc4c2cf50c2dae534aee600101a2")
_GIGA = Archive("http://statmt.org/wmt10/training-giga-fren.tar", 2595102720,
                "3ff8319f6919393520559bfbc7ad6a747ec81b3abc7be9993b338d4b017b4d9a")
_TEST = Archive("http://statmt.org/wmt14/test-full.tgz", md5="a8cd784e006feb32ac6f3d9ec7eb389a")
# fairseq's recipe fetched it from WIT3 first, which is often away, and later from its own server.
_IWSLT = Archive("http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz",
                 others=("https://wit3.fbk.eu/archive/2014-01/texts/de/en/de-en.tgz",))


def _pair(name, archive, member, langs, pairs=0, kind="plain"):
    """A piece whose two files lie in one archive and differ in the {} of `member` only."""
    return Piece(name, (archive, archive), tuple(member.format(lang) for lang in langs), kind, pairs)


def _newstest2014(pair, source, target):
    return Piece("newstest2014", (_TEST, _TEST),
                 ("test-full/newstest2014-%s-src.%s.sgm" % (pair, source),
                  "test-full/newstest2014-%s-ref.%s.sgm" % (pair, target)), "sgm", 3003)


_EN_FR = ("en", "fr")
WMT14_EN_FR = Corpus(
    name="wmt14_en_fr", langs=_EN_FR, disk_gb=75.0,
    train=(
        _pair("europarl-v7", _EUROPARL, "training/europarl-v7.fr-en.{}", _EN_FR, 2007723),
        _pair("commoncrawl", _COMMONCRAWL, "commoncrawl.fr-en.{}", _EN_FR, 3244152),
        _pair("un", _UN, "un/undoc.2000.fr-en.{}", _EN_FR, 12886831),
        _pair("news-commentary-v9", _NEWS_V9, "training/news-commentary-v9.fr-en.{}", _EN_FR, 183251),
        _pair("giga-fren", _GIGA, "giga-fren.release2.fixed.{}.gz", _EN_FR, 22520400),
    ),
    test=(_newstest2014("fren", "en", "fr"),))

_EN_DE = ("en", "de")
WMT14_EN_DE = Corpus(
    name="wmt14_en_de", langs=_EN_DE, valid_every=100, disk_gb=10.0,
    train=(
        _pair("europarl-v7", _EUROPARL, "training/europarl-v7.de-en.{}", _EN_DE, 1920209),
        _pair("commoncrawl", _COMMONCRAWL, "commoncrawl.de-en.{}", _EN_DE, 2399123),
        _pair("news-commentary-v12", _NEWS_V12, "training/news-commentary-v12.de-en.{}", _EN_DE, 270769),
    ),
    test=(_newstest2014("deen", "en", "de"),))

_DE_EN = ("de", "en")
IWSLT14_DE_EN = Corpus(
    name="iwslt14_de_en", langs=_DE_EN, valid_every=23, bpe_merges=10000, normalise_train=False, aggressive=False,
    lowercase=True, clean="words", limits=(1, 175, 1.5), disk_gb=0.5,
    train=(_pair("train", _IWSLT, "de-en/train.tags.de-en.{}", _DE_EN, 174443, "tags"),),
    test=tuple(_pair(name, _IWSLT, "de-en/IWSLT14.%s.de-en.{}.xml" % name, _DE_EN, 0, "sgm")
               for name in ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")))


def _multi30k(name, pairs, *files):
    base = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/%s.%s.gz"
    return Piece(name, tuple(Archive(base % (name, lang), size, sha256)
                             for lang, (size, sha256) in zip(_EN_FR, files)), ("", ""), "plain", pairs)


MULTI30K_EN_FR = Corpus(
    name="multi30k_en_fr", langs=_EN_FR, valid_every=0, bpe_merges=8000, normalise_test=True, disk_gb=0.1,
    train=(_multi30k("train", 29000,
                     (568929, "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f"),
                     (604242, "622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c")),),
    valid=(_multi30k("val", 1014,
                     (21650, "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28"),
                     (23001, "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9")),),
    test=(_multi30k("test_2016_flickr", 1000,
                    (21077, "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9"),
                    (22310, "6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90")),))

CORPORA = {corpus.name: corpus for corpus in (WMT14_EN_FR, WMT14_EN_DE, IWSLT14_DE_EN, MULTI30K_EN_FR)}
