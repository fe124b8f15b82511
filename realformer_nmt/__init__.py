"""RealFormer-NMT: a fairseq plug-in for residual attention and ADMIN initialisation.

``fairseq-train --user-dir realformer_nmt --arch realformer ...`` imports this package, which registers the model, its
architectures and the ``radam`` optimiser, and lets torch's safe loader read fairseq's checkpoints.
"""

from . import checkpoints

checkpoints.allow_fairseq_globals()
checkpoints.install_one_line_errors()

from . import model  # noqa: E402,F401,I001  registration happens on import; architectures need the model
from . import architectures, radam  # noqa: E402,F401
