"""Attention, softmax(q k^T / sqrt(d_head) + mask) v: fused where nobody looks, explicit where patterns are asked for.

`q = x W_Q`, `k = x W_K`, `v = x W_V`; heads are column blocks of these matrices and row blocks of W_O. The three
projections are separate parameters, so that each has a norm, a spectrum, an optimizer state and a freeze of its own.
Source: Vaswani et al. 2017 (arXiv 1706.03762); shared key/value heads: Ainslie et al. 2023 (arXiv 2305.13245);
QK-norm: Henry et al. 2020 (arXiv 2010.04245).
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.errors import ConfigError
from qkv.kernels import blocks
from qkv.kernels.attention import Context, Keys, Mixed, Queries, Stream, Values
from qkv.kernels.attention_products import attend
from qkv.kernels.cache import Cache, KVCache
from qkv.models.activations import Hook, recorder
from qkv.models.layout import Layout, RopeScaling, Sizes, check
from qkv.models.masks import Visible, visible
from qkv.models.norms import RMSNorm, apply_norm
from qkv.models.positions import Rotary, rotate
from qkv.models.start import fill
from qkv.shapes import Bool, Float, Int

__all__ = ["MultiHeadAttention", "SelfAttention", "attend", "attend_explicit"]

Pattern = Float[Tensor, "batch n_heads query_pos key_pos"]
"""Also of scores."""
Mask = Bool[Tensor, "batch key_pos"]
"""True for real tokens."""
Documents = Int[Tensor, "batch query_pos"]


def attend_explicit(
    q: Queries,
    k: Keys,
    v: Values,
    to: Visible,
    scale: float,
    *,
    cap: float = 0.0,
    sinks: Float[Tensor, "n_heads"] | None = None,
    name: str = "",
    hook: Hook | None = None,
) -> tuple[Mixed, Pattern, Pattern]:
    """`attend` by its formula: (z, scores, pattern).

    Scores are scaled, then cap * tanh(score / cap) where there is a `cap`, and -inf where a key is hidden, so pattern =
    softmax(scores) and its rows sum to 1; with `sinks`, each head's score of one more key, that key's share is left out
    of them. `hook` may replace scores and pattern on the way.
    """
    group = q.shape[1] // k.shape[1]
    if group > 1:  # each key/value head once for every query head that reads it: [batch, n_heads, key_pos, d_head]
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    with torch.autocast(q.device.type, enabled=False):  # under bfloat16 scores are summed and kept in float32
        wide = torch.promote_types(torch.promote_types(q.dtype, k.dtype), torch.float32)
        scores = (q.to(wide) * scale) @ k.to(wide).transpose(-2, -1)
    if cap:
        scores = cap * (scores / cap).tanh()
    if to.causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    if to.bias is not None:
        scores = scores + to.bias
    scores = hook(f"{name}.scores", scores) if hook else scores
    if sinks is None:
        pattern = scores.softmax(dim=-1)
    else:
        nowhere = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        pattern = torch.cat((scores, nowhere), dim=-1).softmax(dim=-1)[..., :-1]
    pattern = hook(f"{name}.pattern", pattern) if hook else pattern
    return pattern.to(v.dtype) @ v, scores, pattern


class SelfAttention(nn.Module):
    """One head of self-attention, as short as its formula: softmax(x W_Q (x W_K)^T / sqrt(d_head)) x W_V W_O.

    Parameters W_Q, W_K, W_V [d_model, d_head] and W_O [d_head, d_model], each started by name from `seed`.

    Raises ConfigError for sizes or a start that do not fit.
    """

    def __init__(
        self,
        d_model: int,
        *,
        d_head: int = 0,
        causal: bool = False,
        scale: bool = True,
        start: str = "xavier",
        seed: int = 0,
    ) -> None:
        super().__init__()
        sizes = Sizes(d_vocab=0, d_model=d_model, n_layers=1, n_heads=1, n_ctx=1, d_head=d_head).resolved()
        check(sizes, Layout(positions="none", start=start))
        d_head = sizes.d_head
        self.causal, self.scale = causal, 1 / math.sqrt(d_head) if scale else 1.0
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(torch.empty(d_model, d_head)) for _ in range(3))
        self.W_O = nn.Parameter(torch.empty(d_head, d_model))
        fill(self, start, 1, seed)

    def forward(
        self, x: Float[Tensor, "batch pos d_model"], mask: Bool[Tensor, "batch pos"] | None = None
    ) -> Float[Tensor, "batch pos d_model"]:
        """What attention makes of x; `mask` is True for real tokens."""
        return self.forward_recorded(x, mask)[0]

    def forward_recorded(
        self, x: Float[Tensor, "batch pos d_model"], mask: Bool[Tensor, "batch pos"] | None = None
    ) -> tuple[Float[Tensor, "batch pos d_model"], dict[str, Tensor]]:
        """The same, and q, k, v, z [batch, pos, d_head] and scores, pattern [batch, query_pos, key_pos]."""
        to = visible(x.shape[1], x.shape[1], causal=self.causal, keys=mask, like=x)
        q, k, v = x @ self.W_Q, x @ self.W_K, x @ self.W_V
        z, scores, pattern = (t[:, 0] for t in attend_explicit(q[:, None], k[:, None], v[:, None], to, self.scale))
        return z @ self.W_O, {"q": q, "k": k, "v": v, "scores": scores, "pattern": pattern, "z": z}


class MultiHeadAttention(nn.Module):
    """Heads of attention side by side: out = concat_h(softmax(q_h k_h^T / sqrt(d_head)) v_h) W_O.

    W_Q [d_model, n_heads * d_head], W_K and W_V [d_model, n_kv_heads * d_head], W_O [n_heads * d_head, d_model], with
    b_Q, b_K, b_V, b_O where `bias` ("qkv": without b_O; "out": b_O alone); `qnorm.gain`, `knorm.gain` [d_head] where
    `qk_norm`, with `qk_norm_whole` [n_heads * d_head] and [n_kv_heads * d_head]; b_sink [n_heads] where `sinks`.
    `score_factor` and `score_cap` count where they are not 0; `by_formula` leaves fast paths aside. `rope_base` turns q
    and k by rotary positions (0: none), `rope_share` of each head's coordinates, slowed by `rope_scaling`. Query head h
    reads key/value head h // (n_heads / n_kv_heads). A `seed` of None leaves the parameters unwritten, for a larger
    module to start them by their full address.

    Raises ConfigError for sizes or settings that do not fit.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int = 0,
        d_head: int = 0,
        causal: bool = False,
        bias: bool | str = False,
        qk_norm: bool = False,
        qk_norm_whole: bool = False,
        rope_base: float = 0.0,
        rope_share: float = 1.0,
        rope_scaling: RopeScaling | None = None,
        scale: bool = True,
        score_factor: float = 0.0,
        score_cap: float = 0.0,
        sinks: bool = False,
        by_formula: bool = False,
        norm_eps: float = 1e-6,
        start: str = "xavier",
        seed: int | None = 0,
    ) -> None:
        super().__init__()
        sizes = Sizes(
            d_vocab=0, d_model=d_model, n_layers=1, n_heads=n_heads, n_ctx=1, n_kv_heads=n_kv_heads, d_head=d_head
        ).resolved()
        given = bias if isinstance(bias, str) else "all" if bias else "none"
        turns = {"rope_base": rope_base, "rope_share": rope_share} if rope_base else {"positions": "none"}
        check(sizes, Layout(attention_bias=given, **turns))  # type: ignore[arg-type]
        biased = given in ("qkv", "all")
        self.causal, self.n_heads, self.n_kv_heads, self.d_head = causal, n_heads, sizes.n_kv_heads, sizes.d_head
        self.scale = score_factor or (1 / math.sqrt(self.d_head) if scale else 1.0)
        self.cap, self.whole_norm = score_cap, qk_norm_whole
        self.by_formula = bool(by_formula or score_cap or sinks or qk_norm_whole)
        inner, inner_kv = n_heads * self.d_head, self.n_kv_heads * self.d_head
        self.W_Q = nn.Parameter(torch.empty(d_model, inner))
        self.W_K = nn.Parameter(torch.empty(d_model, inner_kv))
        self.W_V = nn.Parameter(torch.empty(d_model, inner_kv))
        self.W_O = nn.Parameter(torch.empty(inner, d_model))
        self.b_Q = nn.Parameter(torch.empty(inner)) if biased else None
        self.b_K = nn.Parameter(torch.empty(inner_kv)) if biased else None
        self.b_V = nn.Parameter(torch.empty(inner_kv)) if biased else None
        self.b_O = nn.Parameter(torch.empty(d_model)) if given in ("out", "all") else None
        self.b_sink = nn.Parameter(torch.empty(n_heads)) if sinks else None
        self.qnorm = RMSNorm(inner if qk_norm_whole else self.d_head, norm_eps) if qk_norm else None
        self.knorm = RMSNorm(inner_kv if qk_norm_whole else self.d_head, norm_eps) if qk_norm else None
        self.rotary = Rotary(self.d_head, rope_base, rope_share, rope_scaling) if rope_base else None
        fill(self, start, 1, seed)

    def forward(
        self, x: Stream, context: Context | None = None, *, mask: Mask | None = None, documents: Documents | None = None
    ) -> Stream:
        """Attention of x over `context` (cross-attention), or over x itself.

        `mask` is True for real tokens; `documents` keeps packed documents of x apart.

        Raises ConfigError for documents beside a context, whose positions are others.
        """
        return blocks.attention(self, x, self._visible(x, context, mask, documents), context=context)

    def forward_recorded(
        self, x: Stream, context: Context | None = None, *, mask: Mask | None = None, documents: Documents | None = None
    ) -> tuple[Stream, dict[str, Tensor]]:
        """The same by the explicit path, and q, k, v, scores, pattern, z by name.

        q, z [batch, n_heads, query_pos, d_head]; k, v [batch, n_kv_heads, key_pos, d_head]; scores, pattern [batch,
        n_heads, query_pos, key_pos]. q and k are taken after QK-norm and rotary turns.
        """
        hook, record = recorder()
        out = self.mixed(x, self._visible(x, context, mask, documents), context=context, hook=hook)
        return out, {name.lstrip("."): values for name, values in record.items()}

    def _visible(self, x: Tensor, context: Tensor | None, mask: Tensor | None, documents: Tensor | None) -> Visible:
        if context is not None and documents is not None:
            raise ConfigError(
                "documents number the positions of x, and keys come from a context here; give a mask of the context"
            )
        n_key = x.shape[1] if context is None else context.shape[1]
        causal = self.causal and context is None
        return visible(x.shape[1], n_key, causal=causal, keys=mask, documents=documents, like=x)

    def queries(self, x: Stream, offset: int = 0, *, plain: bool = True) -> Queries:
        """q of x, after QK-norm and rotary turns.

        `offset` is the position of x's first row; `plain` takes the norm by its formula.
        """
        return self._placed(x, self.W_Q, self.b_Q, self.qnorm, offset, plain)

    def keys_values(self, x: Context, offset: int = 0, *, plain: bool = True) -> tuple[Keys, Keys]:
        """k and v of x, k normed and turned."""
        return self.keys(x, offset, plain=plain), self._split(F.linear(x, self.W_V.t(), self.b_V))

    def keys(self, x: Context, offset: int = 0, *, plain: bool = True) -> Keys:
        """k alone."""
        return self._placed(x, self.W_K, self.b_K, self.knorm, offset, plain)

    def _split(self, beside: Tensor) -> Tensor:
        return beside.unflatten(-1, (-1, self.d_head)).transpose(1, 2)  # heads split: [batch, heads, pos, d_head]

    def _placed(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, norm: RMSNorm | None, offset: int, plain: bool
    ) -> Tensor:
        beside = F.linear(x, weight.t(), bias)  # [batch, pos, heads * d_head]
        if norm is not None and self.whole_norm:
            beside, norm = apply_norm(norm, beside, plain=plain), None
        heads = self._split(beside)
        heads = heads if norm is None else apply_norm(norm, heads, plain=plain)
        if self.rotary is None:
            return heads
        cos, sin, _ = self.rotary.tables(offset + heads.shape[2], heads.dtype, heads.device)
        return rotate(heads, cos[offset:], sin[offset:])

    def mixed(
        self,
        h: Stream,
        to: Visible,
        *,
        context: Context | None = None,
        cache: Cache | None = None,
        layer: int = 0,
        name: str = "",
        hook: Hook | None = None,
        finish: Callable[[Tensor], Tensor] | None = None,
    ) -> Stream:
        """attention(h) by the formula, with everything decided by the caller.

        `finish` is the last thing done to the output.

        `to` says what is visible; `cache` holds earlier keys and values, and this attention's `layer` in it; `hook` is
        called by names that begin with `name`, and switches to the explicit path.
        """
        assert cache is None or isinstance(cache, KVCache)

        def see(part: str, tensor: Tensor) -> Tensor:
            return tensor if hook is None else hook(f"{name}.{part}", tensor)

        plain = hook is not None
        if context is None:
            h, offset = see("x", h), 0 if cache is None else cache.length
            # heads split: [batch, pos, d_model] -> [batch, heads, pos, d_head]
            q, (k, v) = self.queries(h, offset, plain=plain), self.keys_values(h, offset, plain=plain)
            k, v = (k, v) if cache is None else cache.append(layer, k, v)
        else:
            q, read = self.queries(h, plain=plain), lambda: self.keys_values(context, plain=plain)
            k, v = read() if cache is None else cache.context(layer, read)
        if hook is None and not self.by_formula:
            z = attend(q, k, v, to, self.scale)
        else:
            q, k, v = see("q", q), see("k", k), see("v", v)
            how = {"cap": self.cap, "sinks": self.b_sink, "name": name, "hook": hook}
            z, _, _ = attend_explicit(q, k, v, to, self.scale, **how)
            z = see("z", z)
        beside = z.transpose(1, 2).flatten(2)  # heads merged: [batch, pos, heads * d_head]
        out = F.linear(beside, self.W_O.t(), self.b_O)  # [batch, pos, d_model]
        return see("attn_out", out if finish is None else finish(out))
