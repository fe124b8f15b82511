"""Linear layers that multiply in a faster library while a model generates on a CPU; otherwise torch's own.

torch multiplies float32 matrices on a CPU with MKL, which takes its AVX-512 kernels on Intel processors only. torch
also carries two libraries that take them on any processor (docs/speed.md has the figures):

* oneDNN, in the same float32. It prepares a kernel for every new shape, so that it pays only where shapes are few: in
  generation, with the number of rows rounded up. In training nearly every batch has a shape of its own.
* FBGEMM, with weights in float16 or int8. It needs no preparation, but changes numbers.

fairseq's commands call ``make_generation_fast_`` on every module of a model that will only generate; a layer multiplies
as it did before until then. ``--model-overrides "{'cpu_linear': 'int8'}"`` chooses for one command (a keyword argument for
``from_pretrained``), the environment variable ``REALFORMER_CPU_LINEAR`` for all where that isn't given:

=========  ============================================================================================
auto       oneDNN where the processor has AVX-512 and is not Intel's, else torch (default)
torch      torch's own products
onednn     oneDNN; results differ from torch's by float32 rounding
float16    weights rounded to float16, sums in float32
int8       weights rounded to 8 bits a row, inputs to 8 bits a product ("dynamic quantisation")
=========  ============================================================================================
"""

import functools
import os
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F

from .errors import RealFormerError

SETTING = "cpu_linear"
VARIABLE = "REALFORMER_CPU_LINEAR"
CHOICES = ("auto", "torch", "onednn", "float16", "int8")


def chosen(setting=None):
    """The library that this process generates with on a CPU: "torch", "onednn", "float16" or "int8".

    Args:
        setting (str): the model's ``cpu_linear``; None leaves it to the environment variable

    Raises:
        RealFormerError: an unknown value, or one that asks for what this torch or processor cannot do
    """
    name = setting or os.environ.get(VARIABLE) or "auto"
    source = f"{SETTING} {name!r} in the model's settings" if setting else f"{VARIABLE}={name}"
    if name not in CHOICES:
        raise RealFormerError(f"{source}: choose one of {', '.join(CHOICES)}")
    if name == "auto":
        return "onednn" if _wide_vectors() and _vendor() not in ("", "GenuineIntel") and _works("onednn") else "torch"
    if name != "torch" and not _works(name):
        raise RealFormerError(f"{source}: this torch or processor has no such product; leave it out")
    return name


def _wide_vectors():
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512")


@functools.lru_cache(maxsize=None)
def _vendor():
    """The processor's vendor in Linux's words, or ""."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
            return next((line.split(":")[1].strip() for line in lines if line.startswith("vendor_id")), "")
    except OSError:
        return ""


@functools.lru_cache(maxsize=None)
def _works(name):
    """Whether this torch has the operators behind ``name`` and they compute a product."""
    try:
        with torch.no_grad():
            product = PACKERS[name](torch.full((2, 16), 0.5), torch.ones(2))
            return bool((product(torch.ones(3, 16)) - 9).abs().max() < 0.1)
    except (AttributeError, KeyError, RuntimeError, TypeError):
        return False


def _pack_onednn(weight, bias):
    # laid out once for few rows: 10 to 35% faster than plain weights up to 80 rows, and no slower with 1,000
    weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 32)

    def product(x):
        rows = x.size(0)
        bucket = rounded_up(rows)
        if bucket != rows:
            padded = x.new_empty(bucket, x.size(1))
            padded[:rows] = x
            padded[rows:] = 0
            x = padded
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")[:rows]

    return product


def rounded_up(rows):
    """Rows that a product is computed with: few different numbers, at most a quarter more from 64 rows on."""
    if rows <= 16:
        return 1 << max(rows - 1, 0).bit_length()
    step = 1 << max((rows - 1).bit_length() - 3, 4)
    return -(-rows // step) * step


def _pack_float16(weight, bias):
    packed = torch.ops.quantized.linear_prepack_fp16(weight.contiguous(), bias)
    return lambda x: torch.ops.quantized.linear_dynamic_fp16(x, packed)


def _pack_int8(weight, bias):
    scales = (weight.abs().amax(dim=1) / 127).clamp(min=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that quantised tensors will go; requirements.txt bounds torch
        rounded = torch.quantize_per_channel(
            weight.contiguous(), scales, torch.zeros(scales.shape, dtype=torch.long), 0, torch.qint8
        )
    packed = torch.ops.quantized.linear_prepack(rounded, bias)
    # without the instructions of VNNI a sum of two 8-bit products may not fit, and inputs get 7 bits
    narrow = not getattr(torch.cpu, "_is_vnni_supported", bool)()
    return lambda x: torch.ops.quantized.linear_dynamic(x, packed, narrow)


PACKERS = {"onednn": _pack_onednn, "float16": _pack_float16, "int8": _pack_int8}


class Packed:
    """The product of one or more linear layers of equal input, with weights laid out once for a library.

    The weights are laid out at the first product, in memory of their own, and again if a parameter has changed since.

    Args:
        layers (list): ``nn.Linear``; their outputs stand side by side in the result
        name (str): "torch", "onednn", "float16" or "int8"
    """

    def __init__(self, layers, name):
        self.layers, self.name = layers, name
        self._parameters = [p for layer in layers for p in layer.parameters()]
        self._version = None

    def suits(self, x):
        """Whether ``x`` is what the library multiplies: float32 with at least one row, on a CPU, without gradients."""
        return not (
            torch.is_grad_enabled()
            or x.dtype != torch.float32
            or x.device.type != "cpu"
            or self._parameters[0].dtype != torch.float32
            or x.numel() == 0
            or torch.is_autocast_enabled("cpu")
        )

    def __call__(self, x):
        """x `(..., in_features)` to `(..., sum of out_features)`; only where :meth:`suits`."""
        version = [(p.data_ptr(), p._version) for p in self._parameters]
        if version != self._version:
            self._pack()
            self._version = version
        return self._product(x.reshape(-1, x.size(-1))).view(*x.shape[:-1], -1)

    @torch.no_grad()
    def _pack(self):
        weight, bias = self.layers[0].weight.detach(), self.layers[0].bias
        if len(self.layers) > 1:
            weight = torch.cat([layer.weight for layer in self.layers])
            bias = None if bias is None else torch.cat([layer.bias for layer in self.layers])
        bias = None if bias is None else bias.detach()
        if self.name == "torch":
            self._product = lambda rows: F.linear(rows, weight, bias)
        else:
            self._product = PACKERS[self.name](weight, bias)


class Linear(nn.Linear):
    """torch's linear layer, with :class:`Packed` products once fairseq makes the model ready for generation.

    Same parameters, names and results (but for the choices that say otherwise).
    """

    packed = None
    choice = None  # the model's cpu_linear

    def forward(self, x):
        if self.packed is not None and self.packed.suits(x):
            return self.packed(x)
        return F.linear(x, self.weight, self.bias)

    def make_generation_fast_(self, **kwargs):
        """fairseq calls this when the model will only generate."""
        name = chosen(self.choice)
        self.packed = Packed([self], name) if name != "torch" else None

    def __getstate__(self):
        return {**self.__dict__, "packed": None}  # a library's own layout cannot be copied


def fuse(*layers):
    """One product in the place of several :class:`Linear` layers of equal input, for generation only.

    Returns:
        Packed or None: None where a layer is of another kind (quantisation noise, an adapter) or biases differ in kind
    """
    if any(type(layer) is not Linear or layer._forward_hooks or layer._forward_pre_hooks for layer in layers):
        return None
    if len({(layer.in_features, layer.bias is None) for layer in layers}) > 1:
        return None
    return Packed(list(layers), chosen(layers[0].choice))


def replace_linear_layers(module):
    """Put a :class:`Linear` that holds the same parameters in the place of every plain ``nn.Linear`` inside ``module``.

    Layers with hooks of their own (quantisation noise) are left as they are.
    """
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and not child._forward_pre_hooks and not child._forward_hooks:
                fast = Linear.__new__(Linear)
                nn.Module.__init__(fast)
                fast.in_features, fast.out_features = child.in_features, child.out_features
                fast.weight, fast.bias = child.weight, child.bias
                fast.train(child.training)
                setattr(parent, name, fast)


def choose(module, setting):
    """Have every :class:`Linear` inside ``module`` generate with ``setting``, one of :data:`CHOICES`.

    Raises:
        RealFormerError: as :func:`chosen`
    """
    chosen(setting)
    for layer in module.modules():
        if isinstance(layer, Linear):
            layer.choice = setting
