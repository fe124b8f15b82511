"""fairscale's fully sharded wrapper (--ddp-backend fully_sharded) on CPU tensors.

What it does with parameters and gradients works on any device, but it orders the steps by CUDA streams. On a CPU every
step has ended when its call returns, so streams that do nothing keep the same order. Only what the wrapper calls of
torch's is replaced; its own code runs as it is, over gloo.
"""

from contextlib import contextmanager

import torch


class _Stream:
    def wait_stream(self, other):
        pass

    def synchronize(self):
        pass


_current = [_Stream()]


@contextmanager
def _stream(stream):
    _current.append(stream)
    try:
        yield
    finally:
        _current.pop()


def _reduce_scatter(output, parts, group):
    """output = this rank's share of the sum of *parts* `(world_size, n)` over ranks."""
    total = parts.reshape(torch.distributed.get_world_size(group), -1).clone()
    torch.distributed.all_reduce(total, group=group)
    output.copy_(total[torch.distributed.get_rank(group)].view_as(output))


def allow():
    """Let fairscale's wrapper run on CPU tensors, in this process from now on."""
    from fairscale.nn.data_parallel import fully_sharded_data_parallel as module

    torch.cuda.current_stream = lambda: _current[-1]
    torch.cuda.stream, torch.cuda.synchronize = _stream, lambda: None
    torch.Tensor.record_stream = lambda self, stream: None
    torch.Tensor.cuda = lambda self: self  # fairseq, where it sums the gradient norm over the shards
    torch.distributed._reduce_scatter_base = _reduce_scatter  # gloo has it in newer torch only, for flat tensors
    module._get_default_cuda_device = lambda wrapped: torch.device("cpu")
    setup = module.FullyShardedDataParallel._setup_streams

    def setup_streams(self):
        if not self._streams and self._is_root:
            setup(self)
            self._streams.update(fp32_to_fp16=_Stream(), all_gather=_Stream(), post_backward=_Stream())

    module.FullyShardedDataParallel._setup_streams = setup_streams
