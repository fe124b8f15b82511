"""Stopping between two updates, on every process at once, with a checkpoint.

fairseq knows no signal, but it stops and saves when ``--stop-time-hours`` is over, which it checks after every update.
A signal (SIGUSR1 or SIGTERM), or the stop file that the launcher creates, therefore shortens that limit.  All
processes must agree on the update, or the others would wait in a collective for ever: they reduce one flag an update,
in torch's public hook that runs after every optimiser step.
"""

import logging
import os
import signal
from typing import Optional

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

logger = logging.getLogger(__name__)

STOP_FILE_VARIABLE = "REALFORMER_STOP_FILE"


class StopRequest:
    """Watches for a request to stop and, once all processes know of it, ends fairseq's training loop.

    Args:
        cfg: the configuration that ``fairseq_cli.train.main`` runs with; changed when the request takes effect.
        stop_file: a path whose existence is a request (None: signals only).
    """

    def __init__(self, cfg, stop_file: Optional[str] = None):
        self.cfg = cfg
        self.stop_file = stop_file
        self.reason: Optional[str] = None
        self.acted = False

    def install(self) -> "StopRequest":
        """Catch SIGUSR1 and SIGTERM, and look for requests after every optimiser step."""
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        self._handle = register_optimizer_step_post_hook(self._after_step)
        return self

    def remove(self) -> None:
        """Undo :meth:`install` (signals go back to their defaults)."""
        self._handle.remove()
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)

    def _on_signal(self, number, frame) -> None:
        # a handler only notes the signal: it may run anywhere, also in the middle of a collective
        self.reason = self.reason or signal.Signals(number).name

    def _after_step(self, optimizer, args, kwargs) -> None:
        if self.acted:
            return
        if self.reason is None and self.stop_file and os.path.exists(self.stop_file):
            self.reason = "the launcher's request"
        if not self._any_process_asked():
            return
        self.acted = True
        logger.info("stopping after this update on %s: saving checkpoint_last.pt", self.reason or "another process's request")
        self.cfg.optimization.stop_time_hours = 1e-12
        # whoever sent the signal is counting seconds: save at once, validation can wait for the next start
        self.cfg.dataset.disable_validation = True

    def _any_process_asked(self) -> bool:
        asked = self.reason is not None
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
            return asked
        device = torch.device("cuda") if dist.get_backend() == "nccl" else torch.device("cpu")
        flag = torch.tensor([int(asked)], device=device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())
