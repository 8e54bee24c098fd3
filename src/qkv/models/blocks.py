"""One Transformer block: attention and an MLP, each with its norm and its residual sum."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.kernels import autograd, blocks
from qkv.kernels.attention import Context, Stream
from qkv.kernels.blocks import Drop, joined
from qkv.kernels.cache import Cache
from qkv.models.activations import Hook
from qkv.models.attention import MultiHeadAttention
from qkv.models.layout import GATED, ON_SCORES, Layout, Sizes
from qkv.models.lstm import MIXERS
from qkv.models.masks import Visible
from qkv.models.norms import ACTIVATIONS, apply_norm, make_norm
from qkv.shapes import Float


class MLP(nn.Module):
    """act(x W_in + b_in) W_out + b_out; with a gate (act(x W_gate) * (x W_in + b_in)) W_out + b_out.

    W_in, W_gate [d_model, d_mlp]; W_out [d_mlp, d_model]. Sources: relu^2 So et al. 2021 (arXiv 2109.08668); GELU
    and SiLU Hendrycks and Gimpel 2016 (arXiv 1606.08415); SwiGLU Shazeer 2020 (arXiv 2002.05202), its W is our W_gate
    and its V our W_in.
    """

    def __init__(self, kind: str, d_model: int, d_mlp: int, *, bias: bool) -> None:
        super().__init__()
        self.kind = kind
        self.W_in = nn.Parameter(torch.empty(d_model, d_mlp))
        self.W_gate = nn.Parameter(torch.empty(d_model, d_mlp)) if kind in GATED else None
        self.W_out = nn.Parameter(torch.empty(d_mlp, d_model))
        self.b_in = nn.Parameter(torch.empty(d_mlp)) if bias else None
        self.b_out = nn.Parameter(torch.empty(d_model)) if bias else None

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """By the formula above, at each position by itself."""
        hidden = F.linear(x, self.W_in.t(), self.b_in)  # wider here: [..., d_mlp]
        if self.W_gate is not None:
            hidden = ACTIVATIONS[GATED[self.kind]](F.linear(x, self.W_gate.t())) * hidden
        else:
            hidden = ACTIVATIONS[self.kind](hidden)
        return F.linear(hidden, self.W_out.t(), self.b_out)


class Block(nn.Module):
    """x + attention(norm1(x)), then x + mlp(norm2(x)); norm_place "post": norm1(x + attention(x)), norm2(x + mlp(x)).

    "out": x + norm1(attention(x)), then x + norm2(mlp(x)); "both": x + norm1_out(attention(norm1(x))) and so on.
    Where the layout is parallel: x + attention(norm1(x)) + mlp(norm2(x)) (Wang and Komatsuzaki 2021, GPT-J).
    With `cross`, a second attention reads a context between the two, with its own norm `norm_cross`. `name` ("L0",
    "dec.L1") begins the names of this block's activations and dropout sites; `layer` is its row in a cache.
    """

    def __init__(
        self, sizes: Sizes, layout: Layout, *, layer: int, scope: str = "", cross: bool = False, causal: bool = False
    ) -> None:
        super().__init__()
        self.layer, self.name = layer, f"{scope}L{layer}"
        self.pre, self.skip, self.parallel = layout.pre, layout.skip, layout.parallel
        self.place, self.factor, self.is_windowed = layout.norm_place, layout.residual_factor, layout.windowed(layer)
        self.by_formula = self.place in ("out", "both") or self.factor != 1
        """Whether the fast path of a block has no such block."""
        self.norm1 = make_norm(layout, sizes.d_model) if layer or layout.first_norm else nn.Identity()
        self.attention = _attention(sizes, layout, layer) if layout.mixer == "attention" else None
        attends = self.attention is not None
        self.mixer = None if attends else MIXERS[layout.mixer](sizes, layout, causal=causal)
        self.norm_cross = make_norm(layout, sizes.d_model) if cross else None
        self.cross = _attention(sizes, layout, None) if cross else None
        has_mlp = layout.mlp != "none"
        self.norm2 = (self.norm1 if layout.shared_norm else make_norm(layout, sizes.d_model)) if has_mlp else None
        self.mlp = MLP(layout.mlp, sizes.d_model, sizes.d_mlp, bias=layout.has_bias("mlp")) if has_mlp else None
        both = self.place == "both"
        self.norm1_out = make_norm(layout, sizes.d_model) if both else None
        self.norm_cross_out = make_norm(layout, sizes.d_model) if both and cross else None
        self.norm2_out = make_norm(layout, sizes.d_model) if both and has_mlp else None

    def _finish(self, norm: nn.Module | None, norm_out: nn.Module | None, out: Tensor) -> Tensor:
        """What a sublayer adds to the stream: its output through the norm of outputs, times the factor."""
        norm = norm if self.place == "out" else norm_out
        out = out if norm is None else apply_norm(norm, out, plain=True)
        return out if self.factor == 1 else out * self.factor

    def share(self, other: "Block") -> None:
        """Take all modules of another block for this one's."""
        for name, module in other.named_children():
            setattr(self, name, module)

    def forward(
        self,
        x: Stream,
        to: Visible,
        *,
        context: Context | None = None,
        to_context: Visible | None = None,
        cache: Cache | None = None,
        drop: Drop | None = None,
        hook: Hook | None = None,
    ) -> Stream:
        """The residual stream after this block, given that before it: [batch, pos, d_model] at every line."""
        to_context = to_context or Visible(False, None)
        if hook is None and not self.by_formula and autograd.serves(x):
            return blocks.forward(self, x, to, context=context, to_context=to_context, cache=cache, drop=drop)

        def see(site: str, x: Tensor) -> Tensor:
            return hook(f"{self.name}.{site}", x) if hook else x

        def add(x: "Tensor | None", site: str, out: Tensor) -> Tensor:  # quoted: torch 2.9 compiles no A | B
            """x + dropout(out); dropout(out) alone where x is None, as in a layout without skip connections."""
            return joined(x if self.skip else None, drop, f"{self.name}.{site}", out)

        def cross(h: Tensor) -> Tensor:
            assert self.cross is not None
            how = {"context": context, "cache": cache, "layer": self.layer, "name": f"{self.name}.cross", "hook": hook}
            return self.cross.mixed(h, to_context, finish=finish_cross, **how)

        def mlp(h: Tensor) -> Tensor:
            assert self.mlp is not None
            return see("mlp_out", self._finish(self.norm2, self.norm2_out, self.mlp(h)))

        first, out = (self.attention, "attn_out") if self.attention is not None else (self.mixer, "mix_out")
        assert first is not None
        attention = partial(first.mixed, to=to, cache=cache, layer=self.layer, name=self.name, hook=hook)
        if self.by_formula:
            attention = partial(attention, finish=partial(self._finish, self.norm1, self.norm1_out))
        finish_cross = partial(self._finish, self.norm_cross, self.norm_cross_out)
        norm1, norm_cross, norm2 = (partial(_normed, norm) for norm in (self.norm1, self.norm_cross, self.norm2))

        x = see("resid_pre", x)
        if self.parallel:
            x = x + add(None, out, attention(norm1(x))) + add(None, "mlp_out", mlp(norm2(x)))
        elif self.place != "post":
            before = (norm1, norm_cross, norm2) if self.pre else (_same, _same, _same)
            h = add(x, out, attention(before[0](x)))
            h = add(h, "cross.attn_out", cross(before[1](h))) if self.cross else h
            h = see("resid_mid", h)
            x = add(h, "mlp_out", mlp(before[2](h))) if self.mlp else h
        else:
            h = norm1(add(x, out, attention(x)))
            h = norm_cross(add(h, "cross.attn_out", cross(h))) if self.cross else h
            h = see("resid_mid", h)
            x = norm2(add(h, "mlp_out", mlp(h))) if self.mlp else h
        return see("resid_post", x)


def _normed(norm: nn.Module | None, x: Tensor) -> Tensor:
    """norm(x) by its formula."""
    assert norm is not None
    return apply_norm(norm, x, plain=True)


def _same(x: Tensor) -> Tensor:
    return x


def _attention(sizes: Sizes, layout: Layout, layer: int | None) -> MultiHeadAttention:
    """The attention of a layer, or one that reads a context where `layer` is None."""
    base, scaling = layout.rope_base if layer is not None and layout.turned(layer) else 0.0, layout.rope_scaling
    if base and layer is not None and layout.windowed(layer) and layout.window_rope_base:
        base, scaling = layout.window_rope_base, None
    return MultiHeadAttention(
        sizes.d_model,
        sizes.n_heads,
        n_kv_heads=sizes.n_kv_heads,
        d_head=sizes.d_head,
        bias=layout.biased,
        qk_norm=layout.qk_norm,
        qk_norm_whole=layout.qk_norm_whole,
        rope_base=base,
        rope_share=layout.rope_share,
        rope_scaling=scaling,
        scale=layout.scale,
        score_factor=layout.score_factor,
        score_cap=layout.score_cap,
        sinks=layout.sinks,
        by_formula=layout.positions in ON_SCORES,
        norm_eps=layout.norm_eps,
        seed=None,
    )
