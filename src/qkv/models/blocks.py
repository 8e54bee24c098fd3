"""One Transformer block: attention and an MLP, each with its norm and its residual sum."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.models import fused
from qkv.models.attention import MultiHeadAttention, Tap
from qkv.models.cache import KVCache
from qkv.models.layout import Layout, Sizes
from qkv.models.masks import Visible
from qkv.models.norms import apply_norm, make_norm

__all__ = ["MLP", "Block", "Drop"]

Drop = Callable[[str, Tensor], Tensor]
"""`drop(site, tensor) -> tensor`: dropout by site name ("L0.mlp_out"); the caller owns its randomness."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


class MLP(nn.Module):
    """act(x W_in + b_in) W_out + b_out, or (silu(x W_gate) * x W_in) W_out for swiglu.

    W_in, W_gate [d_model, d_mlp]; W_out [d_mlp, d_model]. Sources: relu^2 So et al. 2021 (arXiv 2109.08668); GELU Hendrycks
    and Gimpel 2016 (arXiv 1606.08415); SwiGLU Shazeer 2020 (arXiv 2002.05202), its W is our W_gate and its V our W_in.
    """

    def __init__(self, kind: str, d_model: int, d_mlp: int, *, bias: bool) -> None:
        super().__init__()
        self.kind = kind
        self.W_in = nn.Parameter(torch.empty(d_model, d_mlp))
        self.W_gate = nn.Parameter(torch.empty(d_model, d_mlp)) if kind == "swiglu" else None
        self.W_out = nn.Parameter(torch.empty(d_mlp, d_model))
        self.b_in = nn.Parameter(torch.empty(d_mlp)) if bias else None
        self.b_out = nn.Parameter(torch.empty(d_model)) if bias else None

    def forward(self, x: Tensor, residual: Tensor | None = None, *, plain: bool = False) -> Tensor:
        """[..., d_model] -> [..., d_model], plus `residual` where given; `plain` keeps to the formula."""
        if self.kind == "relu2" and self.b_in is None and not plain and fused.serves(x):
            return fused.relu2_mlp(residual, x, self.W_in, self.W_out)
        hidden = F.linear(x, self.W_in.t(), self.b_in)
        if self.W_gate is not None:
            hidden = F.silu(F.linear(x, self.W_gate.t())) * hidden
        else:
            hidden = ACTIVATIONS[self.kind](hidden)
        out = F.linear(hidden, self.W_out.t(), self.b_out)
        return out if residual is None else residual + out


class Block(nn.Module):
    """x + attention(norm1(x)), then x + mlp(norm2(x)); with norm_place "post" norm1(x + attention(x)), norm2(x + mlp(x)).

    With `cross`, a second attention reads a context between the two, with its own norm `norm_cross`. `name` ("L0",
    "dec.L1") begins the names of this block's activations and dropout sites; `layer` is its row in a cache.
    """

    def __init__(self, sizes: Sizes, layout: Layout, *, layer: int, scope: str = "", cross: bool = False) -> None:
        super().__init__()
        self.layer, self.name = layer, f"{scope}L{layer}"
        self.pre, self.skip = layout.norm_place == "pre", layout.skip
        self.norm1 = make_norm(layout, sizes.d_model)
        self.attention = _attention(sizes, layout, layout.positions == "rotary")
        self.norm_cross = make_norm(layout, sizes.d_model) if cross else None
        self.cross = _attention(sizes, layout, False) if cross else None
        has_mlp = layout.mlp != "none"
        self.norm2 = make_norm(layout, sizes.d_model) if has_mlp else None
        self.mlp = MLP(layout.mlp, sizes.d_model, sizes.d_mlp, bias=layout.bias) if has_mlp else None

    def forward(
        self,
        x: Tensor,
        to: Visible,
        *,
        context: Tensor | None = None,
        to_context: Visible | None = None,
        cache: KVCache | None = None,
        drop: Drop | None = None,
        tap: Tap | None = None,
    ) -> Tensor:
        """x [batch, pos, d_model] -> [batch, pos, d_model]."""
        name, cross, mlp = self.name, self.cross, self.mlp

        def attend(h: Tensor, residual: Tensor | None) -> Tensor:
            h = tap(f"{name}.x", h) if tap else h
            return self.attention.mix(h, to, residual=residual, cache=cache, layer=self.layer, name=name, tap=tap)

        x = tap(f"{name}.resid_pre", x) if tap else x
        x = self._sublayer(x, self.norm1, attend, "attn_out", drop, tap)
        if cross is not None and self.norm_cross is not None:
            seen, inner = to_context or Visible(False, None), f"{name}.cross"

            def read(h: Tensor, residual: Tensor | None) -> Tensor:
                return cross.mix(
                    h, seen, context=context, residual=residual, cache=cache, layer=self.layer, name=inner, tap=tap
                )

            x = self._sublayer(x, self.norm_cross, read, "cross.attn_out", drop, tap)
        x = tap(f"{name}.resid_mid", x) if tap else x
        if mlp is not None and self.norm2 is not None:
            x = self._sublayer(x, self.norm2, lambda h, r: mlp(h, r, plain=tap is not None), "mlp_out", drop, tap)
        return tap(f"{name}.resid_post", x) if tap else x

    def _sublayer(
        self,
        x: Tensor,
        norm: nn.Module,
        function: Callable[[Tensor, Tensor | None], Tensor],
        site: str,
        drop: Drop | None,
        tap: Tap | None,
    ) -> Tensor:
        """Norm, `function(input, residual)` and residual sum in the order of the layout."""
        h = apply_norm(norm, x, plain=tap is not None) if self.pre else x
        if tap is None and drop is None:
            x = function(h, x if self.skip else None)
        else:
            out = function(h, None)
            out = tap(f"{self.name}.{site}", out) if tap else out
            out = drop(f"{self.name}.{site}", out) if drop else out
            x = x + out if self.skip else out
        return x if self.pre else apply_norm(norm, x, plain=tap is not None)


def _attention(sizes: Sizes, layout: Layout, rotary: bool) -> MultiHeadAttention:
    return MultiHeadAttention(
        sizes.d_model,
        sizes.n_heads,
        n_kv_heads=sizes.n_kv_heads,
        d_head=sizes.d_head,
        bias=layout.bias,
        qk_norm=layout.qk_norm,
        rope_base=layout.rope_base if rotary else 0.0,
        scale=layout.scale,
        norm_eps=layout.norm_eps,
        seed=None,
    )
