"""The fast path of a block on a CPU: norm, sublayer and residual sum as few hand-written parts.

`forward` replaces the formula of `models.blocks.Block.forward`, and `attention` and `mlp` those of its sublayers; each
must equal its formula in values and gradients. What has no fast part (a cache, a context, rotary turns of some
coordinates alone, a recurrence) is left to the module's own formula, between a fast norm and the sum. Modules are known
here by what is read of them.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from qkv.kernels import autograd
from qkv.kernels.attention import Context, Stream, Visible
from qkv.kernels.attention_products import attend
from qkv.kernels.cache import Cache
from qkv.shapes import Float

Drop = Callable[[str, Tensor], Tensor]
"""`drop(site, tensor) -> tensor`: dropout by site name ("L0.mlp_out"); the caller owns its randomness.

One that has `drop.onto(stream, site, tensor)` makes the sum with the residual stream itself."""


@runtime_checkable
class Norm(Protocol):
    """`models.norms.RMSNorm`, whose gain has an epsilon beside it."""

    gain: nn.Parameter
    eps: float


@runtime_checkable
class Turns(Protocol):
    """`models.positions.Rotary`."""

    whole: bool

    def tables(self, n: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]: ...


@runtime_checkable
class Mixer(Protocol):
    """What stands first in a block, by its formula."""

    def mixed(self, h: Stream, to: Visible, *, cache: Cache | None = None, layer: int = 0) -> Stream: ...


@runtime_checkable
class Attention(Protocol):
    """`models.attention.MultiHeadAttention`."""

    W_Q: nn.Parameter
    W_K: nn.Parameter
    W_V: nn.Parameter
    W_O: nn.Parameter
    b_Q: nn.Parameter | None
    b_K: nn.Parameter | None
    b_V: nn.Parameter | None
    b_O: nn.Parameter | None
    n_heads: int
    n_kv_heads: int
    d_head: int
    scale: float
    by_formula: bool

    @property
    def qnorm(self) -> Norm | None: ...
    @property
    def knorm(self) -> Norm | None: ...
    @property
    def rotary(self) -> Turns | None: ...
    def mixed(
        self, h: Stream, to: Visible, *, context: Context | None = None, cache: Cache | None = None, layer: int = 0
    ) -> Stream: ...


@runtime_checkable
class MLP(Protocol):
    """`models.blocks.MLP`."""

    kind: str
    W_in: nn.Parameter
    W_gate: nn.Parameter | None
    W_out: nn.Parameter
    b_in: nn.Parameter | None
    b_out: nn.Parameter | None

    def __call__(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]: ...


@runtime_checkable
class Block(Protocol):
    """`models.blocks.Block`."""

    name: str
    layer: int
    pre: bool
    skip: bool
    parallel: bool
    norm1: nn.Module
    norm_cross: nn.Module | None
    norm2: nn.Module | None

    @property
    def attention(self) -> Attention | None: ...
    @property
    def mixer(self) -> Mixer | None: ...
    @property
    def cross(self) -> Attention | None: ...
    @property
    def mlp(self) -> MLP | None: ...


def joined(stream: Stream | None, drop: Drop | None, site: str, out: Stream) -> Stream:
    """[stream +] drop(out): what a sublayer made, back on the residual stream."""
    if stream is None:
        return out if drop is None else drop(site, out)
    if drop is None:
        return stream + out
    onto = getattr(drop, "onto", None)
    return stream + drop(site, out) if onto is None else onto(stream, site, out)


def attention(
    of: Attention,
    x: Stream,
    to: Visible,
    *,
    norm: nn.Module | None = None,
    skip: bool = False,
    site: str = "",
    drop: Drop | None = None,
    context: Context | None = None,
    cache: Cache | None = None,
    layer: int = 0,
) -> Stream:
    """[x +] drop(attention(norm(x)))."""
    whole = of.rotary is None or of.rotary.whole
    if cache is None and context is None and whole and not of.by_formula and autograd.serves(x):
        q, k, v, x = _heads(of, x, norm)
        z = attend(q, k, v, to, of.scale)
        if skip and drop is None:
            return autograd.attention_out(x, z, of.W_O, of.b_O)
        out = autograd.attention_out(None, z, of.W_O, of.b_O)
    else:
        out = of.mixed(x if norm is None else norm(x), to, context=context, cache=cache, layer=layer)
    return joined(x if skip else None, drop, site, out)


def _fast(norm: nn.Module | None, x: Tensor) -> tuple[Tensor, autograd.Norm | None]:
    """What enters a fast part, and the norm that it takes there; any other norm is made before."""
    inside: autograd.Norm | None = getattr(norm, "fast", None)
    return x if norm is None or inside is not None else norm(x), inside


def _heads(of: Attention, x: Tensor, norm: nn.Module | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v of norm(x), and x for the residual sum."""
    h, inside = _fast(norm, x)
    gains, eps, turn, biases = None, 0.0, None, None
    if of.qnorm is not None and of.knorm is not None:
        gains, eps = (of.qnorm.gain, of.knorm.gain), of.qnorm.eps
    if of.rotary is not None:
        _, _, turn = of.rotary.tables(x.shape[1], x.dtype, x.device)
    if of.b_Q is not None and of.b_K is not None and of.b_V is not None:
        biases = of.b_Q, of.b_K, of.b_V
    heads = autograd.Heads(of.n_heads, of.n_kv_heads, of.d_head, turn, eps)
    q, k, v, h = autograd.attention_in(h, inside, (of.W_Q, of.W_K, of.W_V), biases, gains, heads)
    return q, k, v, h if inside is not None or norm is None else x


def mlp(
    of: MLP, x: Stream, *, norm: nn.Module | None = None, skip: bool = False, site: str = "", drop: Drop | None = None
) -> Stream:
    """[x +] drop(mlp(norm(x)))."""
    if of.kind not in ("relu", "silu", "geglu", "geglu_tanh") and autograd.serves(x):
        h, inside = _fast(norm, x)
        joint = skip and drop is None and h is x
        weights, biases = (of.W_in, of.W_gate, of.W_out), (of.b_in, of.b_out)
        out = autograd.mlp(h, inside, of.kind, weights, biases, residual=joint)
        if joint:
            return out
    else:
        out = of(x if norm is None else norm(x))
    return joined(x if skip else None, drop, site, out)


def forward(
    of: Block,
    x: Stream,
    to: Visible,
    *,
    context: Context | None,
    to_context: Visible,
    cache: Cache | None,
    drop: Drop | None,
) -> Stream:
    """The residual stream after a block, given that before it."""

    def before(norm: nn.Module | None) -> nn.Module | None:
        return norm if of.pre else None

    def after(norm: nn.Module | None, x: Tensor) -> Tensor:
        return x if of.pre or norm is None else norm(x)

    def first(x: Tensor, norm: nn.Module | None, skip: bool) -> Tensor:
        if of.attention is not None:
            site = f"{of.name}.attn_out"
            return attention(
                of.attention, x, to, norm=norm, skip=skip, site=site, drop=drop, cache=cache, layer=of.layer
            )
        assert of.mixer is not None
        out = of.mixer.mixed(x if norm is None else norm(x), to, cache=cache, layer=of.layer)
        return joined(x if skip else None, drop, f"{of.name}.mix_out", out)

    last = f"{of.name}.mlp_out"
    if of.parallel and of.mlp is not None:  # a layout that is parallel has both
        return x + first(x, of.norm1, False) + mlp(of.mlp, x, norm=of.norm2, site=last, drop=drop)
    x = after(of.norm1, first(x, before(of.norm1), of.skip))
    if of.cross is not None:
        x = attention(
            of.cross,
            x,
            to_context,
            norm=before(of.norm_cross),
            skip=of.skip,
            site=f"{of.name}.cross.attn_out",
            drop=drop,
            context=context,
            cache=cache,
            layer=of.layer,
        )
        x = after(of.norm_cross, x)
    if of.mlp is not None:
        x = after(of.norm2, mlp(of.mlp, x, norm=before(of.norm2), skip=of.skip, site=last, drop=drop))
    return x
