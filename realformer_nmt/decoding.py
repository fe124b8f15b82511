"""What a decoder remembers between the steps of incremental decoding: one state, shared by all of its layers.

fairseq's decoder keeps keys and values per hypothesis, so that each step of beam search copies every layer's cache into
the new order of the beams, copies it again to append a position, and holds the source's keys once a beam. Here:

* Self-attention keys stay where they were written, `(sentence, head, position, beam, head_dim)`. A table of ancestors
  says which beam's entry a hypothesis descends from at each position. Each hypothesis multiplies with all entries of its
  sentence, and a mask built from the table, once a step for all layers, leaves the others out. Reordering beams is then
  an update of the table.
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


class DecodingState:
    """Caches, ancestors and masks of one batch.

    Args:
        sentences (int): S, sentences in the batch
        beam (int): B, rows a sentence

    Attributes:
        length (int): positions whose keys are cached
        width (int): W, rows a sentence that this step computes: 1 in a first step with equal beams, else B
        ancestors (Tensor): `(S, B, length)` long, the beam that holds each hypothesis's entry at each position
    """

    def __init__(self, sentences, beam):
        self.sentences, self.beam, self.width, self.length = sentences, beam, beam, 0
        self.ancestors = None
        self.padded = None  # (S, length, B) bool: entries whose token was padding; None while there are none
        self.self_mask = None
        self.cross_mask = None
        self._own = {}  # attention module -> [keys, values], each (S, heads, capacity, B, head_dim)
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
        slots = torch.arange(self.beam, device=device)
        newest = (slots if self.width == self.beam else torch.zeros_like(slots)).expand(self.sentences, -1)[..., None]
        self.ancestors = newest if self.ancestors is None else torch.cat([self.ancestors, newest], dim=2)

        padding = last.eq(pad)
        if self.padded is not None or bool(padding.any()):
            if self.padded is None:
                self.padded = padding.new_zeros(self.sentences, self.length, self.beam)
            self.padded = torch.cat([self.padded, padding[:, None]], dim=1)
        self.self_mask = None
        if self.beam > 1 or self.padded is not None:
            hidden = self.ancestors[:, : self.width, :, None] != slots
            if self.padded is not None:
                hidden = hidden | self.padded[:, None]
            mask = torch.zeros(hidden.shape, dtype=score_dtype(dtype), device=device).masked_fill_(hidden, MASKED)
            self.self_mask = mask.view(self.sentences, 1, self.width, -1)
        return tokens

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
            tuple: all keys and values so far, `(S * heads, (length + 1) * B, head_dim)`, views of the cache
        """
        cache = self._own.get(module)
        if cache is None:
            cache = self._own[module] = [None, None]
        heads, out = module.num_heads, []
        for which, new in enumerate((k, v)):
            new = self._split(new, heads)
            stored = cache[which]
            if stored is None or stored.size(2) == self.length:
                capacity = FIRST_CAPACITY if stored is None else 2 * self.length
                grown = new.new_empty(self.sentences, heads, capacity, self.beam, new.size(-1))
                if stored is not None:
                    grown[:, :, : self.length] = stored
                stored = cache[which] = grown
            stored[:, :, self.length, : self.width] = new
            if self.width < self.beam:
                stored[:, :, self.length, self.width :] = 0  # masked, but it must be a number
            flat = stored.view(self.sentences * heads, -1, new.size(-1))
            out.append(flat[:, : (self.length + 1) * self.beam])
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
        """P over all entries of a sentence, `(S * heads, W, (length + 1) * B)`, to P over the hypothesis's own positions.

        Returns:
            Tensor: `(heads, S * W, 1, length + 1)`
        """
        heads = probs.size(0) // self.sentences
        probs = probs.view(self.sentences, heads, self.width, -1, self.beam)
        index = self.ancestors[:, None, : self.width, :, None].expand(-1, heads, -1, -1, -1)
        return probs.gather(4, index).transpose(0, 1).reshape(heads, self.sentences * self.width, 1, -1)

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
            self.ancestors = self.ancestors.gather(1, beams[..., None].expand(-1, -1, self.length))

    def _select(self, sentences):
        for cache in self._own.values():
            for which, stored in enumerate(cache):
                if stored.requires_grad:
                    cache[which] = stored.index_select(0, sentences)
                    continue
                # only what is in use: the rest of the capacity holds nothing yet
                kept = stored.new_empty(sentences.numel(), *stored.shape[1:])
                torch.index_select(stored[:, :, : self.length], 0, sentences, out=kept[:, :, : self.length])
                cache[which] = kept
        for module, cache in self._source.items():
            self._source[module] = tuple(x.index_select(0, sentences) for x in cache)
        for name in ("ancestors", "padded", "cross_mask"):
            if getattr(self, name) is not None:
                setattr(self, name, getattr(self, name).index_select(0, sentences))
        self.sentences = sentences.numel()

    def _split_beams(self):
        """Give every row its own caches, as one sentence with one beam."""
        size, beam, length = self.sentences, self.beam, self.length
        for cache in self._own.values():
            for which, stored in enumerate(cache):
                heads, dim = stored.size(1), stored.size(-1)
                every = stored[:, None, :, :length].expand(-1, beam, -1, -1, -1, -1)
                index = self.ancestors[:, :, None, :, None, None].expand(-1, -1, heads, -1, -1, dim)
                cache[which] = every.gather(4, index).reshape(size * beam, heads, length, 1, dim)
        for module, cache in self._source.items():
            self._source[module] = tuple(x.repeat_interleave(beam, dim=0) for x in cache)
        if self.padded is not None:
            every = self.padded[:, None].expand(-1, beam, -1, -1)
            self.padded = every.gather(3, self.ancestors[..., None]).reshape(size * beam, length, 1)
        if self.cross_mask is not None:
            self.cross_mask = self.cross_mask.repeat_interleave(beam, dim=0)
        self.ancestors = self.ancestors.new_zeros(size * beam, 1, length)
        self.sentences, self.beam, self.width = size * beam, 1, 1


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
