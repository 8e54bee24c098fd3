"""One new token for every sequence of a batch: the layers of a decoder flattened into few operators.

Reading one position at a time, a model spends its time on calls and not on numbers. Here the weights are laid out for
that once: Q, K and V beside each other, W_gate and W_in beside each other, and every gain and bias of a norm folded
into the matrix behind it, so that norm(x) W = (x / rms(x)) (diag(gain) W). QK-norm's gains are folded into the tables
of the rotary turns. The model's own forward pass is the formula that this must equal, up to rounding.

It serves decoders with the norm before each sublayer and residual sums, one sublayer after the other, whole heads
turned and contexts of a usual length (`serves`); `tasks.generation` takes the model's own path elsewhere.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.models.blocks import ACTIVATIONS, Block
from qkv.models.cache import KVCache
from qkv.models.norms import LayerNorm, RMSNorm

__all__ = ["Decoding", "serves"]

MOST_TURNS = 1 << 25
"""Numbers in the tables of turns of all layers; a context of 100,000 positions would need gigabytes of them."""


def serves(model: Any) -> bool:
    """Whether `Decoding` can read with this model."""
    layout = getattr(model, "layout", None)
    if layout is None:
        return False
    sizes = model.sizes
    turns = sizes.n_layers * sizes.n_ctx * (sizes.n_heads + sizes.n_kv_heads) * sizes.d_head
    return bool(
        (layout.positions != "rotary" or turns <= MOST_TURNS)
        and model.causal
        and not model.cross
        and layout.mixer == "attention"
        and layout.norm_place == "pre"
        and layout.norm != "none"
        and layout.skip
        and not layout.parallel
        and not layout.head_transform
        and layout.rope_share == 1
        and next(model.parameters()).dtype in (torch.float32, torch.float64)
    )


class _Into(NamedTuple):
    """A norm and the matrix behind it, as one: standardise x, multiply, add."""

    rms: float
    """sqrt(d eps) of an RMSNorm; negative for a LayerNorm."""
    eps: float
    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        if self.rms >= 0:
            size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            x = x / (torch.hypot(size, size.new_tensor(self.rms)) if self.rms else size)
        else:
            x = F.layer_norm(x, x.shape[-1:], eps=self.eps)
        return x @ self.weight if self.bias is None else torch.addmm(self.bias, x, self.weight)


def _into(norm: nn.Module | None, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> _Into:
    """norm(x) [W_1 | W_2 | ...] + biases with the norm's gain and bias folded in."""
    weight = torch.cat([w.detach() for w in weights], dim=1)
    bias = None
    if any(b is not None for b in biases):
        bias = torch.cat(
            [w.new_zeros(w.shape[1]) if b is None else b.detach() for w, b in zip(weights, biases, strict=True)]
        )
    assert isinstance(norm, RMSNorm | LayerNorm)
    if isinstance(norm, LayerNorm) and norm.bias is not None:
        shift = norm.bias.detach() @ weight
        bias = shift if bias is None else bias + shift
    weight = norm.gain.detach()[:, None] * weight
    if isinstance(norm, RMSNorm):
        d = weight.shape[0]
        return _Into(math.sqrt(d * norm.eps), norm.eps, weight * math.sqrt(d), bias)
    return _Into(-1.0, norm.eps, weight, bias)


class _Layer:
    """One block, laid out for single positions."""

    def __init__(self, block: Block, n_ctx: int) -> None:
        attention, mlp = block.attention, block.mlp
        assert attention is not None
        self.n_heads, self.n_kv, self.d_head = attention.n_heads, attention.n_kv_heads, attention.d_head
        self.n_qk = self.n_heads + self.n_kv
        self.scale = attention.scale
        self.qkv = _into(
            block.norm1,
            [attention.W_Q, attention.W_K, attention.W_V],
            [attention.b_Q, attention.b_K, attention.b_V],
        )
        self.W_O, self.none = attention.W_O.detach(), attention.W_O.new_empty(())
        self.b_O = None if attention.b_O is None else attention.b_O.detach()
        self.qk_rms = (
            None if attention.qnorm is None else self.W_O.new_tensor(math.sqrt(self.d_head * attention.qnorm.eps))
        )
        self.along, self.across = self._turns(attention, n_ctx)
        self.mlp_kind = None if mlp is None else mlp.kind
        if mlp is not None:
            weights = [mlp.W_in] if mlp.W_gate is None else [mlp.W_gate, mlp.W_in]
            biases = [mlp.b_in] if mlp.W_gate is None else [None, mlp.b_in]
            self.mlp_in = _into(block.norm2, weights, biases)
            self.W_out = mlp.W_out.detach()
            self.b_out = None if mlp.b_out is None else mlp.b_out.detach()

    def _turns(self, attention: Any, n_ctx: int) -> tuple[Tensor | None, Tensor | None]:
        """Tables [n_ctx or 1, n_qk, d_head] with q' = u along + swapped(u) across; QK-norm's gains are in them."""
        if attention.rotary is None and attention.qnorm is None:
            return None, None
        like = self.W_O
        gains = like.new_ones(self.n_qk, self.d_head)
        if attention.qnorm is not None:
            root = math.sqrt(self.d_head)
            gains[: self.n_heads], gains[self.n_heads :] = attention.qnorm.gain * root, attention.knorm.gain * root
        if attention.rotary is None:
            return gains[None], None
        cos, sin, _ = attention.rotary.tables(n_ctx, like.dtype, like.device)
        along, across = torch.cat((cos, cos), 1)[:, None], torch.cat((-sin, sin), 1)[:, None]
        return along * gains, across * gains.roll(self.d_head // 2, dims=1)

    def step(self, x: Tensor, place: Tensor, keys: Tensor, values: Tensor, n: int) -> Tensor:
        """x [batch, d_model] at position n -> the same after this block; its key and value go into `place`.

        place [2, batch, kv_head, d_head]; keys [batch * kv_head, d_head, n + 1] and values [batch * kv_head, n + 1,
        d_head] are views of the same memory. One query is two batched products: the fused operator, made for long
        rows, takes up to three times as long for it.
        """
        batch = x.shape[0]
        h = self.qkv(x).view(batch, self.n_qk + self.n_kv, self.d_head)
        qk, v = h.narrow(1, 0, self.n_qk), h.narrow(1, self.n_qk, self.n_kv)
        if self.qk_rms is not None:
            qk = qk / torch.hypot(torch.linalg.vector_norm(qk, dim=-1, keepdim=True), self.qk_rms)
        if self.across is not None and self.along is not None:
            qk = torch.addcmul(qk * self.along[n], qk.roll(self.d_head // 2, dims=2), self.across[n])
        elif self.along is not None:
            qk = qk * self.along[0]
        place[0].copy_(qk.narrow(1, self.n_heads, self.n_kv))
        place[1].copy_(v)
        q = qk.narrow(1, 0, self.n_heads).reshape(batch * self.n_kv, -1, self.d_head)
        pattern = torch.baddbmm(self.none, q, keys, beta=0, alpha=self.scale).softmax(-1)
        z = torch.bmm(pattern, values)
        x = torch.addmm(x, z.view(batch, -1), self.W_O)
        x = x if self.b_O is None else x.add_(self.b_O)
        return x if self.mlp_kind is None else self._mlp(x)

    def _mlp(self, x: Tensor) -> Tensor:
        h = self.mlp_in(x)
        if self.mlp_kind == "swiglu":
            gate, h = h.chunk(2, dim=1)
            h = F.silu(gate) * h
        else:
            h = ACTIVATIONS[self.mlp_kind or ""](h)
        x = torch.addmm(x, h, self.W_out)
        return x if self.b_out is None else x.add_(self.b_out)


class Decoding:
    """Reads one token at a time after what a `KVCache` of the same model holds; for `torch.inference_mode`."""

    def __init__(self, model: Any) -> None:
        assert serves(model)
        self._embedding, n_ctx = model.embedding, model.sizes.n_ctx
        self._layers = [_Layer(block, n_ctx) for block in model.blocks]
        head = model.head
        W_U = head.W_U if head.W_U is not None else model.embedding.W_E.t()
        self._out = _into(model.norm_f, [W_U], [head.b_U])

    def step(self, ids: Tensor, cache: KVCache) -> Tensor:
        """ids int64 [batch], the next token of each sequence -> logits [batch, d_vocab] for the one after it."""
        n = cache.length
        x = self._embedding(ids[:, None], None, n)[:, 0]
        places = cache.store.select(4, n).unbind(0)
        seen = cache.store.flatten(2, 3)[:, :, :, : n + 1]
        keys, values = seen[:, 0].mT.unbind(0), seen[:, 1].unbind(0)
        for layer, place, seen_keys, seen_values in zip(self._layers, places, keys, values, strict=True):
            x = layer.step(x, place, seen_keys, seen_values, n)
        cache.advance(1)
        return self._out(x)
