"""One process of a data-parallel group, run under torchrun: python rank_script.py DATABIN OUT BACKEND UPDATES UPDATE-FREQ.

Trains realformer_tiny with fairseq's Trainer and stores, for its rank, the losses, the weights and what the first batch
was.  BACKEND is legacy_ddp, c10d or fully_sharded, fairseq's --ddp-backend values, or "none" without torchrun.
"""

import os
import sys

import torch

databin, out, backend, updates, update_freq = sys.argv[1:]
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
torch.set_num_threads(1)

from fairseq import models, options, tasks, utils  # noqa: E402
from fairseq.data import iterators  # noqa: E402
from fairseq.dataclass.utils import convert_namespace_to_omegaconf  # noqa: E402
from fairseq.distributed import fsdp_enable_wrap, fsdp_wrap  # noqa: E402
from fairseq.distributed import utils as distributed_utils  # noqa: E402
from fairseq.logging import metrics  # noqa: E402
from fairseq.trainer import Trainer  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from realformer_nmt.launch.worker import distributed_arguments  # noqa: E402


class CpuTrainer(Trainer):
    """fairseq's Trainer, with torch's DistributedDataParallel as fairseq builds it but for the device number.

    fairseq always passes one, which torch refuses for modules on the CPU; the wrapper itself is what runs on GPUs.
    """

    @property
    def model(self):
        if self._wrapped_model is None and backend == "c10d":
            wrapped = DistributedDataParallel(
                self._model, broadcast_buffers=False, process_group=self.data_parallel_process_group
            )
            self._wrapped_model = models.distributed_fairseq_model.ModuleProxyWrapper(wrapped)
        return super().model


arguments = [
    databin, "--user-dir", os.path.join(os.path.dirname(__file__), "..", "..", "realformer_nmt"), "--cpu",
    "--arch", "realformer_tiny", "--optimizer", "radam", "--lr", "0.001", "--dropout", "0", "--max-tokens", "100",
    "--update-freq", update_freq, "--seed", "7", "--num-workers", "0",
    "--min-params-to-wrap", "1", "--ddp-backend", backend if backend != "none" else "legacy_ddp", *distributed_arguments(os.environ, cuda=False),
]  # fmt: skip
cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), input_args=arguments))
if world > 1:
    distributed_utils.distributed_init(cfg)
utils.set_torch_seed(cfg.common.seed)
task = tasks.setup_task(cfg.task)
if backend == "fully_sharded":  # as fairseq-train builds it
    import cpu_sharding

    cpu_sharding.allow()
    with fsdp_enable_wrap(cfg.distributed_training):
        model = fsdp_wrap(task.build_model(cfg.model))
    wrapped = sum(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules())
    assert wrapped == 1 + len(model.encoder.layers) + len(model.decoder.layers), wrapped
else:
    model = task.build_model(cfg.model)
trainer = CpuTrainer(cfg, task, model, task.build_criterion(cfg.criterion))
epoch = trainer.get_train_iterator(1)
batches = iterators.GroupedIterator(epoch.next_epoch_itr(shuffle=True), int(update_freq))
losses, first = [], None
for samples in batches:
    first = first or [sample["id"].tolist() for sample in samples]
    with metrics.aggregate(new_root=True) as seen:
        trainer.train_step(samples)
    losses.append(float(seen.get_smoothed_values()["loss"]))
    if trainer.get_num_updates() == int(updates):
        break
state = {name: value.clone() for name, value in trainer.model.state_dict().items()}
omegas = [omega.init.clone() for omega in model.omegas()]
torch.save({"losses": losses, "weights": state, "first": first, "omegas": omegas}, os.path.join(out, f"rank{rank}.pt"))
