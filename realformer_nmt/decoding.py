"""What a decoder remembers between the steps of incremental decoding: one state, shared by all of its layers.

fairseq's decoder keeps keys and values per hypothesis, so that each step of beam search copies every layer's cache into
the new order of the beams, copies it again to append a position, and holds the source's keys once a beam. Here:

* Self-attention keys stay where they were written, `(sentence, head, entry, head_dim)`, one entry a beam at every
  position. A table of ancestors says which beam's entry a hypothesis descends from. Each hypothesis multiplies with all
  entries of its sentence, and a mask built from the table, once a step for all layers, leaves the others out. Reordering
  beams is then an update of the table.
* Hypotheses of a beam soon agree on how the sentence begins. From time to time the positions where all of them descend
  from one entry, in every sentence, are folded into one entry each: the others are of use to nobody any more.
* The source's keys and values are held once a sentence. To attention the beams of a sentence look like consecutive
  target positions.
* The first step, where all beams of a sentence are equal, is computed once a sentence.

None of it changes a formula. The number of beams is read off :func:`reorder_encoder_out`, which sees how the search
repeats the encoder's output; where the rows do not come in groups of equal sources, each row counts as its own sentence.
"""

import torch

from .errors import RealFormerError
from .scores import MASKED, additive_mask, score_dtype

ACTIVE = "realformer.decoding"  # key in incremental_state under which layers find the state during a step
FIRST_CAPACITY = 32  # positions; doubled whenever it is full
FOLD_EVERY = 8  # positions with an entry a beam, between two attempts to fold some of them


class DecodingState:
    """Caches, ancestors and masks of one batch.

    Args:
        sentences (int): S, sentences in the batch
        beam (int): B, rows a sentence

    Attributes:
        length (int): positions whose keys are cached
        width (int): W, rows a sentence that this step computes: 1 in a first step with equal beams, else B
        shared (int): positions, the first ones, that have one entry a sentence; all later ones have B
        ancestors (Tensor): `(S, B, length - shared)` long, the beam that holds each hypothesis's entry at each position
    """

    def __init__(self, sentences, beam):
        self.sentences, self.beam, self.width, self.length = sentences, beam, beam, 0
        self.shared = 0
        self.ancestors = None
        self.padded = None  # (S, entries) bool: entries whose token was padding; None while there are none
        self.self_mask = None
        self.cross_mask = None
        self._own = {}  # attention module -> [keys, values], each (S, heads, capacity, head_dim)
        self._source = {}  # attention module -> (keys, values), each (S, heads, src_len, head_dim)

    def begin(self, tokens, pad, dtype):
        """Start a step: decide its width, extend the ancestors, build the self-attention mask.

        Args:
            tokens: `(S * B, n)`, the last column is this step's input
            pad (int): padding index
            dtype: of the hidden states

        Returns:
            Tensor: the rows to compute, `(S * W, n)`
        """
        if tokens.size(0) != self.sentences * self.beam:
            raise RealFormerError(
                f"incremental decoding: {tokens.size(0)} rows after {self.sentences * self.beam}; "
                "call reorder_incremental_state_scripting when rows are dropped, or start a new incremental_state"
            )
        device = tokens.device
        last = tokens[:, -1].view(self.sentences, self.beam)
        self.width = self.beam
        if self.length == 0 and self.beam > 1:
            rows = tokens.view(self.sentences, self.beam, -1)
            if bool((rows == rows[:, :1]).all()):
                self.width = 1
                tokens = rows[:, 0]
        if self.beam > 1 and self.length > self.shared and (self.length - self.shared) % FOLD_EVERY == 0:
            self._fold_shared()
        slots = torch.arange(self.beam, device=device)
        newest = (slots if self.width == self.beam else torch.zeros_like(slots)).expand(self.sentences, -1)[..., None]
        padding = last.eq(pad)
        if self.padded is not None or bool(padding.any()):
            if self.padded is None:
                self.padded = padding.new_zeros(self.sentences, self.entries)
            self.padded = torch.cat([self.padded, padding], dim=1)
        self.ancestors = newest if self.ancestors is None else torch.cat([self.ancestors, newest], dim=2)
        self.self_mask = None
        if self.beam > 1 or self.padded is not None:
            others = (self.ancestors[:, : self.width, :, None] != slots).flatten(2)
            shape = (self.sentences, self.width, self.shared + others.size(2))
            mask = torch.zeros(shape, dtype=score_dtype(dtype), device=device)
            mask[:, :, self.shared :].masked_fill_(others, MASKED)
            if self.padded is not None:
                mask.masked_fill_(self.padded[:, None], MASKED)
            self.self_mask = mask[:, None]
        return tokens

    @property
    def entries(self):
        """Cached entries a sentence."""
        return self.shared + (self.length - self.shared) * self.beam

    def _fold_shared(self):
        """Keep one entry for each of the first positions where all hypotheses of each sentence have one ancestor.

        An ancestor common to all at one position is so at every earlier one.
        """
        common = (self.ancestors == self.ancestors[:, :1]).all(dim=1).all(dim=0)
        count = int(common.long().cumprod(0).sum())
        if 2 * count < FOLD_EVERY:  # not worth the copy
            return
        beams = self.ancestors[:, 0, :count]
        for cache in self._own.values():
            for stored in cache:
                self._fold(stored, 2, beams[:, None, :, None, None])
        if self.padded is not None:
            self._fold(self.padded, 1, beams[:, :, None])
            self.padded = self.padded[:, : self.entries - count * (self.beam - 1)]
        self.ancestors = self.ancestors[:, :, count:]
        self.shared += count

    def _fold(self, stored, dim, beams):
        """Fold, in place, along the dimension of entries; ``beams`` has a dimension for the beam after that one."""
        first, count, end = self.shared, beams.size(dim), self.entries
        own = stored.narrow(dim, first, count * self.beam).unflatten(dim, (count, self.beam))
        shape = list(own.shape)
        shape[dim + 1] = 1
        kept = own.gather(dim + 1, beams.expand(shape)).squeeze(dim + 1)
        rest = stored.narrow(dim, first + count * self.beam, end - first - count * self.beam).clone()
        stored.narrow(dim, first, count).copy_(kept)
        stored.narrow(dim, first + count, rest.size(dim)).copy_(rest)

    def set_source(self, encoder_padding_mask, num_heads, dtype):
        """Build the cross-attention mask; ``encoder_padding_mask`` `(S, src_len)` or None."""
        self.cross_mask = additive_mask(encoder_padding_mask, None, num_heads, dtype)

    def end(self):
        self.length += 1

    def fold(self, x, num_heads):
        """`(1, S * W, heads * head_dim)` to `(S * heads, W, head_dim)`."""
        return self._split(x, num_heads).reshape(self.sentences * num_heads, self.width, -1)

    def unfold(self, x):
        """`(S * heads, W, n)` to `(1, S * W, heads * n)`."""
        heads = x.size(0) // self.sentences
        return x.view(self.sentences, heads, self.width, -1).transpose(1, 2).reshape(1, self.sentences * self.width, -1)

    def spread(self, x, dim):
        """Copy a first step's rows, computed once a sentence, to every beam; `dim` is the dimension of rows."""
        return x if x is None or self.width == self.beam else x.repeat_interleave(self.beam, dim=dim)

    def spread_extra(self, extra):
        """:meth:`spread` for what fairseq's decoder returns beside the features."""
        return {
            **extra,
            "attn": [self.spread(x, 0) for x in extra["attn"]],
            "inner_states": [self.spread(x, 1) for x in extra["inner_states"]],
        }

    def _split(self, x, num_heads):
        return x.view(self.sentences, self.width, num_heads, -1).transpose(1, 2)

    def append(self, module, k, v):
        """Write this position's keys and values, `(1, S * W, embed_dim)` each.

        Returns:
            tuple: all keys and values so far, `(S * heads, entries, head_dim)`, views of the cache
        """
        cache = self._own.get(module)
        if cache is None:
            cache = self._own[module] = [None, None]
        heads, out, start = module.num_heads, [], self.entries
        end = start + self.beam
        for which, new in enumerate((k, v)):
            new = self._split(new, heads)
            stored = cache[which]
            if stored is None or stored.size(2) < end:
                capacity = FIRST_CAPACITY * self.beam if stored is None else 2 * end
                grown = new.new_empty(self.sentences, heads, capacity, new.size(-1))
                if stored is not None:
                    grown[:, :, :start] = stored[:, :, :start]
                stored = cache[which] = grown
            stored[:, :, start : start + self.width] = new
            if self.width < self.beam:
                stored[:, :, start + self.width : end] = 0  # masked, but it must be a number
            out.append(stored.view(self.sentences * heads, -1, new.size(-1))[:, :end])
        return tuple(out)

    def source(self, module, key):
        """The source's keys and values, projected on first use; ``key`` `(src_len, S or more rows, kdim)`.

        Returns:
            tuple: `(S * heads, src_len, head_dim)` each
        """
        if module not in self._source:
            if key.size(1) != self.sentences:
                key = key[:, :: key.size(1) // self.sentences]
            self._source[module] = tuple(
                projection(key)
                .view(key.size(0), self.sentences, module.num_heads, -1)
                .permute(1, 2, 0, 3)
                .contiguous()
                for projection in (module.k_proj, module.v_proj)
            )
        return tuple(x.view(-1, *x.shape[2:]) for x in self._source[module])

    def own_weights(self, probs):
        """P over all entries of a sentence, `(S * heads, W, entries)`, to P over the hypothesis's own positions.

        Returns:
            Tensor: `(heads, S * W, 1, length + 1)`
        """
        heads = probs.size(0) // self.sentences
        probs = probs.view(self.sentences, heads, self.width, -1)
        own = probs[..., self.shared :].unflatten(3, (-1, self.beam))
        index = self.ancestors[:, None, : self.width, :, None].expand(-1, heads, -1, -1, -1)
        probs = torch.cat([probs[..., : self.shared], own.gather(4, index).squeeze(4)], dim=3)
        return probs.transpose(0, 1).reshape(heads, self.sentences * self.width, 1, -1)

    def source_weights(self, probs):
        """P `(S * heads, W, src_len)` to `(heads, S * W, 1, src_len)`."""
        heads = probs.size(0) // self.sentences
        probs = probs.view(self.sentences, heads, self.width, -1).transpose(0, 1)
        return probs.reshape(heads, self.sentences * self.width, 1, -1)

    def reorder(self, new_order):
        """Make row i continue row ``new_order[i]``; `(rows,)` long, any length."""
        if self.length == 0 and not self._source:
            return
        keep, beams = group_by_sentence(new_order, self.beam)
        if keep is None:
            self._split_beams()
            keep, beams = new_order, None
        if not is_identity(keep, self.sentences):
            self._select(keep)
        if beams is not None and self.ancestors is not None and self.beam > 1:
            self.ancestors = self.ancestors.gather(1, beams[..., None].expand(-1, -1, self.ancestors.size(2)))

    def _select(self, sentences):
        for cache in self._own.values():
            for which, stored in enumerate(cache):
                if stored.requires_grad:
                    cache[which] = stored.index_select(0, sentences)
                    continue
                # only what is in use: the rest of the capacity holds nothing yet
                kept = stored.new_empty(sentences.numel(), *stored.shape[1:])
                torch.index_select(stored[:, :, : self.entries], 0, sentences, out=kept[:, :, : self.entries])
                cache[which] = kept
        for module, cache in self._source.items():
            self._source[module] = tuple(x.index_select(0, sentences) for x in cache)
        for name in ("ancestors", "padded", "cross_mask"):
            if getattr(self, name) is not None:
                setattr(self, name, getattr(self, name).index_select(0, sentences))
        self.sentences = sentences.numel()

    def _split_beams(self):
        """Give every row its own caches, as one sentence with one beam."""
        size, beam = self.sentences, self.beam
        for cache in self._own.values():
            cache[:] = [self._each_beams_own(stored, 2, self.ancestors[:, :, None, :, None, None]) for stored in cache]
        for module, cache in self._source.items():
            self._source[module] = tuple(x.repeat_interleave(beam, dim=0) for x in cache)
        if self.padded is not None:
            self.padded = self._each_beams_own(self.padded, 1, self.ancestors[..., None])
        if self.cross_mask is not None:
            self.cross_mask = self.cross_mask.repeat_interleave(beam, dim=0)
        self.ancestors = self.ancestors.new_zeros(size * beam, 1, self.length)
        self.sentences, self.beam, self.width, self.shared = size * beam, 1, 1, 0

    def _each_beams_own(self, stored, dim, ancestors):
        """Entries `(S, ..)` along ``dim`` to `(S * B, ..)`, those that each hypothesis descends from."""
        used = stored.narrow(dim, 0, self.entries)[:, None]  # a dimension for the hypotheses: all others move on by one
        used = used.expand(-1, self.beam, *used.shape[2:])
        later = used.narrow(dim + 1, self.shared, used.size(dim + 1) - self.shared).unflatten(dim + 1, (-1, self.beam))
        shape = list(later.shape)
        shape[dim + 2] = 1
        later = later.gather(dim + 2, ancestors.expand(shape)).squeeze(dim + 2)
        return torch.cat([used.narrow(dim + 1, 0, self.shared), later], dim=dim + 1).flatten(0, 1)


def group_by_sentence(new_order, beam):
    """Split a reordering of `sentences * beam` rows into one of sentences and one of the beams inside each.

    Returns:
        tuple: sentences `(n,)` and beams `(n, beam)`, or (None, None) where a group mixes sentences
    """
    if new_order.numel() % beam:
        return None, None
    groups = new_order.view(-1, beam)
    sentences = torch.div(groups, beam, rounding_mode="floor")
    if beam > 1 and not bool((sentences == sentences[:, :1]).all()):
        return None, None
    return sentences[:, 0], groups - sentences * beam


def is_identity(order, size):
    """Whether ``order`` selects 0, 1, .. size-1."""
    return order.numel() == size and bool((order == torch.arange(size, device=order.device)).all())


def reorder_encoder_out(reorder, encoder_out, new_order):
    """fairseq's reorder_encoder_out, plus a note of how many equal rows a sentence has; copies nothing if none moves.

    Args:
        reorder: the parent class's method
        encoder_out (dict), new_order (Tensor): its arguments

    Returns:
        dict: the reordered output. ``"beam_size": [B]`` is in it while rows s*B .. s*B+B-1 are copies of one sentence.
    """
    rows = encoder_out["encoder_padding_mask"][0].size(0)
    noted = encoder_out.get("beam_size")
    beam = None
    if noted is not None:
        keep, _ = group_by_sentence(new_order, noted[0])
        if keep is not None:
            if is_identity(keep, rows // noted[0]):
                return encoder_out
            beam = noted[0]
    elif rows and new_order.numel() and new_order.numel() % rows == 0:
        repeats = new_order.numel() // rows
        expected = torch.arange(rows, device=new_order.device).repeat_interleave(repeats)
        if bool((new_order == expected).all()):
            if repeats == 1:
                return encoder_out
            beam = repeats
    encoder_out = reorder({key: value for key, value in encoder_out.items() if key != "beam_size"}, new_order)
    if beam is not None:
        encoder_out["beam_size"] = [beam]
    return encoder_out
