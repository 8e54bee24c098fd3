"""LayerNorm and RMSNorm with gains named `gain` and `bias`, and the elementwise functions of an MLP by name."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.kernels import autograd, elementwise
from qkv.models.layout import Layout
from qkv.shapes import Float

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu2": lambda x: (r := F.relu(x)) * r,  # the slope of a power costs a GPU six times that of a product
    "gelu": F.gelu,
    "silu": F.silu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}
"""Name of an elementwise function -> the function."""


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(var + eps) * gain + bias over the last axis (Ba et al. 2016, arXiv 1607.06450)."""

    def __init__(self, d: int, eps: float, *, bias: bool = True, gain: bool = True) -> None:
        super().__init__()
        self.d, self.eps = d, eps
        self.gain = nn.Parameter(torch.ones(d)) if gain else None
        self.bias = nn.Parameter(torch.zeros(d)) if bias else None

    @property
    def fast(self) -> autograd.Norm | None:
        """As the fast path takes it; without a gain it does not."""
        return None if self.gain is None else autograd.Norm(self.gain, self.bias, autograd.NormKind(self.eps, True))

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """norm(x)."""
        fast = self.fast if autograd.serves(x) and elementwise.is_compiled() else None
        return self.plain(x) if fast is None else autograd.norm(x, fast)

    def plain(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """The same by its formula: for recording inner values and for second derivatives."""
        return F.layer_norm(x, (self.d,), self.gain, self.bias, self.eps)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * gain over the last axis (Zhang and Sennrich 2019, arXiv 1910.07467)."""

    def __init__(self, d: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.ones(d))

    @property
    def fast(self) -> autograd.Norm:
        """As the fast path takes it."""
        return autograd.Norm(self.gain, None, autograd.NormKind(self.eps, False))

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """norm(x)."""
        return autograd.norm(x, self.fast) if autograd.serves(x) else self.plain(x)

    def plain(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """The same by its formula: for recording inner values and for second derivatives."""
        x = x.to(self.gain.dtype)
        if x.device.type == "cuda":  # torch's kernel for the slope of a gain takes longer than all the rest of a norm
            return F.rms_norm(x, self.gain.shape, None, self.eps) * self.gain
        return F.rms_norm(x, self.gain.shape, self.gain, self.eps)


def make_norm(layout: Layout, d: int) -> nn.Module:
    """The norm of a layout; `nn.Identity` where it has none."""
    if layout.norm == "layer":
        return LayerNorm(d, layout.norm_eps, bias=layout.has_bias("norm"), gain=layout.norm_gain)
    return RMSNorm(d, layout.norm_eps) if layout.norm == "rms" else nn.Identity()


def apply_norm(norm: nn.Module, x: Float[Tensor, "*batch d"], *, plain: bool) -> Float[Tensor, "*batch d"]:
    """`norm(x)`, by its formula where `plain`."""
    return norm.plain(x) if plain and isinstance(norm, (RMSNorm, LayerNorm)) else norm(x)
