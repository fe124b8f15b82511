"""Launching long training runs: recipes, pre-flight checks, resuming and stopping in good order.

``python -m realformer_nmt.launch`` is what the ``scripts/train_*.sh`` commands run.  It builds an ordinary
``fairseq-train`` command line, checks what it can before any device is busy, and starts one process per device
under torchrun.  Each process runs :mod:`realformer_nmt.launch.worker`, which hands over to fairseq's own ``main``.
"""


from ..errors import RealFormerError


class LaunchError(RealFormerError):
    """Something the user has to put right: one line that says what, where and what to do."""
