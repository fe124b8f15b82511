"""English sentences and their French translations, spelt out from a small grammar with gender and agreement."""

import random

ARTICLES = {"m": "le", "f": "la"}
NOUNS = [
    ("dog", "chien", "m"), ("cat", "chat", "m"), ("house", "maison", "f"), ("car", "voiture", "f"),
    ("teacher", "professeur", "m"), ("girl", "fille", "f"), ("boy", "garçon", "m"), ("woman", "femme", "f"),
    ("baker", "boulanger", "m"), ("table", "table", "f"), ("garden", "jardin", "m"), ("bridge", "pont", "m"),
]  # fmt: skip
ADJECTIVES = [
    ("black", "noir", "noire"), ("white", "blanc", "blanche"), ("red", "rouge", "rouge"), ("green", "vert", "verte"),
    ("tired", "fatigué", "fatiguée"), ("happy", "heureux", "heureuse"), ("dry", "sec", "sèche"),
]  # fmt: skip
VERBS = [("sees", "voit"), ("looks for", "cherche"), ("finds", "trouve"), ("likes", "aime"), ("leaves", "quitte")]
PLACES = [
    ("", ""), ("in the street", "dans la rue"), ("near the river", "près de la rivière"), ("today", "aujourd'hui"),
    ("behind the church", "derrière l'église"), ("without a word", "sans un mot"),
]  # fmt: skip


def _phrase(rng):
    noun, french, gender = rng.choice(NOUNS)
    if rng.random() < 0.6:
        adjective, masculine, feminine = rng.choice(ADJECTIVES)
        ending = masculine if gender == "m" else feminine
        return f"the {adjective} {noun}", f"{ARTICLES[gender]} {french} {ending}"
    return f"the {noun}", f"{ARTICLES[gender]} {french}"


def sentence_pairs(count, seed=0):
    """``count`` different (English, French) pairs, tokens separated by spaces."""
    rng = random.Random(seed)
    pairs = {}
    while len(pairs) < count:
        subject, sujet = _phrase(rng)
        verb, verbe = rng.choice(VERBS)
        what, quoi = _phrase(rng)
        place, lieu = rng.choice(PLACES)
        english = " ".join(part for part in (subject, verb, what, place, ".") if part)
        pairs[english] = " ".join(part for part in (sujet, verbe, quoi, lieu, ".") if part)
    return list(pairs.items())


def write_corpus(folder, train=400, valid=24, test=24):
    """Write train, valid and test ``.en`` and ``.fr`` files split into BPE units, and ``codes``; returns ``folder``."""
    import io

    from subword_nmt.apply_bpe import BPE
    from subword_nmt.learn_bpe import learn_bpe

    pairs = sentence_pairs(train + valid + test)
    text = "".join(f"{en}\n{fr}\n" for en, fr in pairs[:train])
    with open(folder / "codes", "w", encoding="utf-8") as codes:
        learn_bpe(io.StringIO(text), codes, num_symbols=200)
    with open(folder / "codes", encoding="utf-8") as codes:
        bpe = BPE(codes)
    splits = {"train": pairs[:train], "valid": pairs[train : train + valid], "test": pairs[train + valid :]}
    for split, chosen in splits.items():
        for index, lang in enumerate(("en", "fr")):
            lines = [pair[index] for pair in chosen]
            (folder / f"{split}.{lang}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            cut = "".join(f"{bpe.process_line(line)}\n" for line in lines)
            (folder / f"{split}.{lang}").write_text(cut, encoding="utf-8")
    return folder
