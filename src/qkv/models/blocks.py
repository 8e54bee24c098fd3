"""One Transformer block: attention and an MLP, each with its norm and its residual sum."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.kernels import autograd
from qkv.kernels.cache import Cache
from qkv.models.attention import Drop, Hook, MultiHeadAttention, joined
from qkv.models.layout import Layout, Sizes
from qkv.models.lstm import MIXERS
from qkv.models.masks import Visible
from qkv.models.norms import ACTIVATIONS, LayerNorm, RMSNorm, apply_norm, make_norm
from qkv.shapes import Float

__all__ = ["MLP", "Block"]


class MLP(nn.Module):
    """act(x W_in + b_in) W_out + b_out, or (silu(x W_gate) * x W_in) W_out for swiglu.

    W_in, W_gate [d_model, d_mlp]; W_out [d_mlp, d_model]. Sources: relu^2 So et al. 2021 (arXiv 2109.08668); GELU
    and SiLU Hendrycks and Gimpel 2016 (arXiv 1606.08415); SwiGLU Shazeer 2020 (arXiv 2002.05202), its W is our W_gate
    and its V our W_in.
    """

    def __init__(self, kind: str, d_model: int, d_mlp: int, *, bias: bool) -> None:
        super().__init__()
        self.kind = kind
        self.W_in = nn.Parameter(torch.empty(d_model, d_mlp))
        self.W_gate = nn.Parameter(torch.empty(d_model, d_mlp)) if kind == "swiglu" else None
        self.W_out = nn.Parameter(torch.empty(d_mlp, d_model))
        self.b_in = nn.Parameter(torch.empty(d_mlp)) if bias else None
        self.b_out = nn.Parameter(torch.empty(d_model)) if bias else None

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """By the formula above, at each position by itself."""
        hidden = F.linear(x, self.W_in.t(), self.b_in)  # wider here: [..., d_mlp]
        if self.W_gate is not None:
            hidden = F.silu(F.linear(x, self.W_gate.t())) * hidden
        else:
            hidden = ACTIVATIONS[self.kind](hidden)
        return F.linear(hidden, self.W_out.t(), self.b_out)

    def mix(
        self,
        x: Float[Tensor, "batch pos d_model"],
        *,
        norm: nn.Module | None = None,
        skip: bool = False,
        name: str = "",
        drop: Drop | None = None,
        hook: Hook | None = None,
    ) -> Float[Tensor, "batch pos d_model"]:
        """[x +] mlp(norm(x)): a block's whole sublayer, see `MultiHeadAttention.mix`."""
        if hook is None and self.kind not in ("relu", "silu") and autograd.serves(x):
            h, inside = (x, norm.fast) if isinstance(norm, RMSNorm | LayerNorm) else (norm(x) if norm else x, None)
            joint = skip and drop is None and h is x
            weights, biases = (self.W_in, self.W_gate, self.W_out), (self.b_in, self.b_out)
            out = autograd.mlp(h, inside, self.kind, weights, biases, residual=joint)
            if joint:
                return out
        else:
            out = self(x if norm is None else apply_norm(norm, x, plain=hook is not None))
            out = hook(f"{name}.mlp_out", out) if hook else out
        return joined(x if skip else None, drop, f"{name}.mlp_out", out)


class Block(nn.Module):
    """x + attention(norm1(x)), then x + mlp(norm2(x)); norm_place "post": norm1(x + attention(x)), norm2(x + mlp(x)).

    Where the layout is parallel: x + attention(norm1(x)) + mlp(norm2(x)) (Wang and Komatsuzaki 2021, GPT-J).
    With `cross`, a second attention reads a context between the two, with its own norm `norm_cross`. `name` ("L0",
    "dec.L1") begins the names of this block's activations and dropout sites; `layer` is its row in a cache.
    """

    def __init__(
        self,
        sizes: Sizes,
        layout: Layout,
        *,
        layer: int,
        scope: str = "",
        cross: bool = False,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.layer, self.name = layer, f"{scope}L{layer}"
        self.pre, self.skip, self.parallel = layout.norm_place == "pre", layout.skip, layout.parallel
        self.norm1 = make_norm(layout, sizes.d_model)
        rotary, attends = layout.positions == "rotary", layout.mixer == "attention"
        self.attention = _attention(sizes, layout, rotary) if attends else None
        self.mixer = None if attends else MIXERS[layout.mixer](sizes, layout, causal=causal)
        self.norm_cross = make_norm(layout, sizes.d_model) if cross else None
        self.cross = _attention(sizes, layout, False) if cross else None
        has_mlp = layout.mlp != "none"
        self.norm2 = make_norm(layout, sizes.d_model) if has_mlp else None
        self.mlp = MLP(layout.mlp, sizes.d_model, sizes.d_mlp, bias=layout.bias) if has_mlp else None

    def forward(
        self,
        x: Float[Tensor, "batch pos d_model"],
        to: Visible,
        *,
        context: Float[Tensor, "batch context_pos d_model"] | None = None,
        to_context: Visible | None = None,
        cache: Cache | None = None,
        drop: Drop | None = None,
        hook: Hook | None = None,
    ) -> Float[Tensor, "batch pos d_model"]:
        """The residual stream after this block, given that before it."""
        name = self.name
        x = hook(f"{name}.resid_pre", x) if hook else x
        around = {"skip": self.skip, "drop": drop, "hook": hook}
        held = {"cache": cache, "layer": self.layer}
        mixer = self.attention or self.mixer
        assert mixer is not None
        if self.parallel and self.mlp is not None:
            around["skip"] = False
            attended = mixer.mix(x, to, norm=self.norm1, name=name, **around, **held)
            x = x + attended + self.mlp.mix(x, norm=self.norm2, name=name, **around)
            return hook(f"{name}.resid_post", x) if hook else x
        x = mixer.mix(x, to, norm=self._before(self.norm1), name=name, **around, **held)
        x = self._after(self.norm1, x, hook)
        if self.cross is not None:
            seen, norm = to_context or Visible(False, None), self._before(self.norm_cross)
            x = self.cross.mix(x, seen, norm=norm, context=context, name=f"{name}.cross", **around, **held)
            x = self._after(self.norm_cross, x, hook)
        x = hook(f"{name}.resid_mid", x) if hook else x
        if self.mlp is not None:
            x = self.mlp.mix(x, norm=self._before(self.norm2), name=name, **around)
            x = self._after(self.norm2, x, hook)
        return hook(f"{name}.resid_post", x) if hook else x

    def _before(self, norm: nn.Module | None) -> nn.Module | None:
        return norm if self.pre else None

    def _after(self, norm: nn.Module | None, x: Tensor, hook: Hook | None) -> Tensor:
        return x if self.pre or norm is None else apply_norm(norm, x, plain=hook is not None)


def _attention(sizes: Sizes, layout: Layout, rotary: bool) -> MultiHeadAttention:
    return MultiHeadAttention(
        sizes.d_model,
        sizes.n_heads,
        n_kv_heads=sizes.n_kv_heads,
        d_head=sizes.d_head,
        bias=layout.biased,
        qk_norm=layout.qk_norm,
        rope_base=layout.rope_base if rotary else 0.0,
        rope_share=layout.rope_share,
        rope_scaling=layout.rope_scaling,
        scale=layout.scale,
        norm_eps=layout.norm_eps,
        seed=None,
    )
