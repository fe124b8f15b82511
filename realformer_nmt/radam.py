"""``--optimizer radam``: rectified Adam (arXiv 1908.03265), which the published recipe uses; torch's implementation."""

from dataclasses import dataclass, field
from typing import Any, List

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import FairseqAdam
from omegaconf import II

from .errors import RealFormerError


@dataclass
class FairseqRAdamConfig(FairseqDataclass):
    adam_betas: Any = field(default=(0.9, 0.999), metadata={"help": "betas for RAdam optimizer"})
    adam_eps: float = field(default=1e-8, metadata={"help": "epsilon for RAdam optimizer"})
    weight_decay: float = field(default=0.0, metadata={"help": "decoupled weight decay, as --optimizer adam's"})
    lr: List[float] = II("optimization.lr")


@register_optimizer("radam", dataclass=FairseqRAdamConfig)
class FairseqRAdam(FairseqAdam):
    """:class:`torch.optim.RAdam` under fairseq's flags.

    --adam-betas, --adam-eps and --weight-decay mean what they mean for ``--optimizer adam``: the decay is decoupled, a
    step first multiplies the weights by 1 - lr * weight_decay.

    Raises:
        RealFormerError: when the optimiser is built, for a setting out of its range, and with --memory-efficient-fp16 or
            --memory-efficient-bf16
    """

    def __init__(self, cfg, params):
        FairseqOptimizer.__init__(self, cfg)  # FairseqAdam's own __init__ would build Adam
        settings = self._checked_config()
        self._optimizer = torch.optim.RAdam(params, decoupled_weight_decay=True, **settings)

    def _checked_config(self):
        """fairseq's settings for Adam, every number in its range."""
        try:
            settings = self.optimizer_config  # evaluates the text of --adam-betas
            beta1, beta2 = map(float, settings["betas"])
        except (NameError, SyntaxError, TypeError, ValueError):
            beta1 = beta2 = -1.0
        if not (0 <= beta1 < 1 and 0 <= beta2 < 1):
            raise RealFormerError(
                f"--adam-betas {self.cfg.adam_betas!r}: give two numbers from 0 up to but not 1, as '(0.9, 0.98)'"
            )
        for flag, value in (("--adam-eps", self.cfg.adam_eps), ("--weight-decay", self.cfg.weight_decay)):
            if not 0 <= value < float("inf"):
                raise RealFormerError(f"{flag} {value}: give 0 or a number above it")
        return settings

    @property
    def supports_memory_efficient_fp16(self):
        # asked by the memory-efficient wrappers alone, whose own error would not say what to do
        raise RealFormerError(
            "--optimizer radam with --memory-efficient-fp16 or -bf16: these keep no float32 weights, which RAdam needs; "
            "use --fp16, --bf16 or --amp, or --optimizer adam"
        )

    @property
    def supports_flat_params(self):
        return True  # every operation is element by element


