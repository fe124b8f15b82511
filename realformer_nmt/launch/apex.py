"""Which ``apex`` is installed, found out without running any of it.

NVIDIA's apex is built from its source on CUDA machines and gives fairseq fused optimisers and layer norms.  The package
of the same name on PyPI is an unrelated toolkit for the Pyramid web framework: fairseq cannot use it.
"""

import importlib.util
import os
from dataclasses import dataclass

ABSENT, NVIDIA, NVIDIA_PYTHON_ONLY, WRONG = "absent", "nvidia", "nvidia-python-only", "wrong"


@dataclass(frozen=True)
class Apex:
    """``kind`` is one of ABSENT, NVIDIA, NVIDIA_PYTHON_ONLY (built without its CUDA parts) and WRONG."""

    kind: str
    where: str = ""

    def __str__(self) -> str:
        if self.kind == ABSENT:
            return "absent (optional: only speed is lost; scripts/install_apex.sh builds it on CUDA machines)"
        if self.kind == NVIDIA:
            return f"NVIDIA apex with CUDA extensions, {self.where}"
        if self.kind == NVIDIA_PYTHON_ONLY:
            return f"NVIDIA apex built without its CUDA extensions (no gain), {self.where}"
        return (
            f"the WRONG package: {self.where} is not NVIDIA's apex but PyPI's unrelated 'apex';"
            " run: pip uninstall apex"
        )


def detect_apex(find_spec=importlib.util.find_spec) -> Apex:
    """Tell NVIDIA's apex from PyPI's by the folders it has; nothing of the package is imported."""
    try:
        spec = find_spec("apex")
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return Apex(ABSENT)
    folders = list(spec.submodule_search_locations or [])
    if not folders:
        return Apex(WRONG, str(spec.origin))
    where = folders[0]
    if not all(os.path.isdir(os.path.join(where, part)) for part in ("optimizers", "normalization")):
        return Apex(WRONG, where)
    try:
        built = find_spec("amp_C") is not None
    except (ImportError, ValueError):
        built = False
    return Apex(NVIDIA if built else NVIDIA_PYTHON_ONLY, where)
