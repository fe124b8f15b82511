"""A list of layers that hands each layer's scores to the next while the list is walked.

fairseq's encoder and decoder call ``for layer in self.layers: x = layer(x, ...)`` in the middle of methods that are
hundreds of lines long. The stack takes part in that loop: inside :meth:`ResidualStack.passing_scores` it yields each
layer bound to the scores carried so far. Outside of it, it is a plain list of modules.
"""

from contextlib import contextmanager

import torch.nn as nn
from fairseq.modules import LayerDropModuleList


class EncoderScores:
    """R of encoder self-attention on its way up the stack."""

    def __init__(self):
        self.scores, self.layers = None, 0

    def call(self, layer, *args, **kwargs):
        *out, scores = layer(*args, prev_scores=self.scores, prev_layers=self.layers, **kwargs)
        if scores is not None:
            self.scores, self.layers = scores, self.layers + 1
        return out[0] if len(out) == 1 else tuple(out)


class DecoderScores:
    """R of decoder self-attention and of cross-attention on their way up the stack."""

    def __init__(self):
        self.own, self.other = EncoderScores(), EncoderScores()

    def call(self, layer, *args, **kwargs):
        *out, own, other = layer(
            *args,
            prev_self_scores=self.own.scores,
            prev_self_layers=self.own.layers,
            prev_cross_scores=self.other.scores,
            prev_cross_layers=self.other.layers,
            **kwargs,
        )
        for carried, scores in ((self.own, own), (self.other, other)):
            if scores is not None:
                carried.scores, carried.layers = scores, carried.layers + 1
        return tuple(out)


class ResidualStack(LayerDropModuleList):
    """Layers in order of depth, with LayerDrop (arXiv 1909.11556) and residual scores.

    A dropped layer is not called: R passes it unchanged, and mode "mean" does not count it.

    Args:
        layers (nn.ModuleList): the layers
        p (float): LayerDrop probability
        carrier (type): EncoderScores or DecoderScores
    """

    def __init__(self, layers, p, carrier):
        # not iter(layers): a list with LayerDrop skips some of its layers when it is walked
        super().__init__(p, [layers[index] for index in range(len(layers))])
        self._carrier = carrier
        self._carried = None

    @contextmanager
    def passing_scores(self):
        """Inside the context one walk over the list is one forward pass from R_0 = 0."""
        outer, self._carried = self._carried, self._carrier()
        try:
            yield self
        finally:
            self._carried = outer

    def __iter__(self):
        # without LayerDrop no random numbers are drawn, as in fairseq
        layers = super().__iter__() if self.p > 0 else nn.ModuleList.__iter__(self)
        carried = self._carried
        for layer in layers:
            if carried is not None and getattr(layer, "carries_scores", False):
                yield _bind(carried, layer)
            else:
                yield layer


def _bind(carried, layer):
    return lambda *args, **kwargs: carried.call(layer, *args, **kwargs)
