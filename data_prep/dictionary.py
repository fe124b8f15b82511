"""fairseq's dict.txt, written from counts and read back, without importing fairseq and torch."""

#: The symbols that every fairseq Dictionary starts with; dict.txt does not list them.
SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
EOS, UNK = SPECIALS.index("</s>"), SPECIALS.index("<unk>")


def write_dictionary(pieces, output, threshold=0, padding_factor=8):
    """Writes the dict.txt that fairseq-preprocess would build; returns {"dictionary": entries, specials included}.

    pieces: {piece: how often}, of both sides of the training text. threshold: rarer pieces are left out
    (``--thresholdsrc``). padding_factor: filled up to a multiple of it (``--padding-factor``).

    fairseq-preprocess needs a pass of its own over all the text for this; here the pieces were counted while they
    were written. Source: fairseq/data/dictionary.py, Dictionary.finalize, pad_to_multiple_ and save: most frequent
    first, equals in alphabetical order.
    """
    kept = [(piece, count) for piece, count in pieces.items() if count >= threshold and piece not in SPECIALS]
    kept.sort(key=lambda item: (-item[1], item[0]))
    names, number = {piece for piece, _ in kept}, 0
    while (len(SPECIALS) + len(names)) % padding_factor:
        filler = "madeupword%04d" % number
        if filler not in names:
            names.add(filler)
            kept.append((filler, 0))
        number += 1
    with open(output, "w", encoding="utf-8", newline="\n") as out:
        out.writelines("%s %d\n" % item for item in kept)
    return {"dictionary": len(SPECIALS) + len(kept)}


class Vocabulary(dict):
    """piece -> number, from a dict.txt; any other piece is UNK. `size`: how many numbers there are."""

    def __init__(self, path):
        super().__init__((name, number) for number, name in enumerate(SPECIALS))
        with open(path, encoding="utf-8", newline="\n") as lines:
            for number, line in enumerate(lines, len(SPECIALS)):
                self[line.rsplit(" ", 1)[0]] = number
        self.size = len(self)

    def __missing__(self, piece):
        return UNK
