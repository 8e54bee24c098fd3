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
from typing import NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.kernels.cache import KVCache, SplitCache
from qkv.kernels.decoding import CompiledSteps
from qkv.kernels.decoding import serves as compiled_serves
from qkv.models.attention import MultiHeadAttention
from qkv.models.blocks import ACTIVATIONS, Block
from qkv.models.norms import LayerNorm, RMSNorm
from qkv.models.zoo import MODELS, LanguageModel
from qkv.shapes import Float, Int

_LINE = 16
"""Numbers of a cache line."""

MOST_TURNS = 1 << 25
"""Numbers in the tables of turns of all layers; a context of 100,000 positions would need gigabytes of them."""


def serves(model: LanguageModel) -> bool:
    """Whether `Decoding` can read with this model."""
    layout = getattr(model, "layout", None)
    if layout is None:
        return False
    sizes = model.sizes
    turns = sizes.n_layers * sizes.n_ctx * (sizes.n_heads + sizes.n_kv_heads) * sizes.d_head
    return bool(
        sizes.n_layers
        and (layout.positions != "rotary" or turns <= MOST_TURNS)
        and type(model) in MODELS.values()
        and model.causal
        and not model.cross
        and layout.mixer == "attention"
        and layout.norm_place == "pre"
        and layout.norm != "none"
        and layout.skip
        and not layout.parallel
        and not layout.special
        and not layout.head_transform
        and layout.rope_share == 1
        and next(model.parameters()).dtype in (torch.float32, torch.float64)
    )


class _Into(NamedTuple):
    """A norm and the matrix behind it, as one: standardise x, multiply, add."""

    rms: Tensor | None
    """sqrt(d eps) of an RMSNorm; None for a LayerNorm."""
    eps: float
    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        if self.rms is None:
            x = torch.layer_norm(x, x.shape[-1:], eps=self.eps)
        else:
            x = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(self.rms)
        if self.bias is None:
            return torch.mm(x, self.weight, out=out)
        return torch.addmm(self.bias, x, self.weight, out=out)


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
    assert norm.gain is not None, "`serves` refuses norms without gains"
    weight = norm.gain.detach()[:, None] * weight
    if isinstance(norm, RMSNorm):
        d = weight.shape[0]
        return _Into(weight.new_tensor(math.sqrt(d * norm.eps)), norm.eps, weight * math.sqrt(d), bias)
    return _Into(None, norm.eps, weight, bias)


class _Heads:
    """The joined product of all heads at one position, one memory for every layer, and its parts as views of it."""

    def __init__(self, batch: int, n_heads: int, n_kv: int, d_head: int, like: Tensor) -> None:
        n_qk, rows = n_heads + n_kv, (batch * n_kv, n_heads // n_kv, d_head)
        self.joined = like.new_empty(batch, (n_qk + n_kv) * d_head)
        heads = self.joined.view(batch, -1, d_head)
        self.qk = heads[:, :n_qk]
        self.kv = heads[:, n_heads:].view(batch, 2, n_kv, d_head).transpose(0, 1)
        self._q_from = heads[:, :n_heads]
        self._q = self._q_from if batch == 1 else like.new_empty(batch, n_heads, d_head)
        self._q_rows = self._q.view(rows)
        self.z = like.new_empty(batch * n_kv, n_heads // n_kv, d_head)
        self.z_of_row = self.z.view(batch, n_heads * d_head)
        self._halves, self._swapped = self.qk.tensor_split(2, dim=2), like.new_empty(self.qk.shape)
        self._others = self._swapped.tensor_split(2, dim=2)

    def swapped(self) -> Tensor:
        """q and k with the halves of each head in the other order, in memory of their own."""
        self._others[0].copy_(self._halves[1])
        self._others[1].copy_(self._halves[0])
        return self._swapped

    def queries(self) -> Tensor:
        """q [batch * kv_head, group, d_head], where heads of a group share their key."""
        if self._q is not self._q_from:
            self._q.copy_(self._q_from)
        return self._q_rows


class _Layer:
    """One block, laid out for single positions."""

    def __init__(self, block: Block, n_ctx: int) -> None:
        attention, mlp = block.attention, block.mlp
        assert attention is not None
        self.d_head, self.n_heads, self.n_kv = attention.d_head, attention.n_heads, attention.n_kv_heads
        turned = attention.rotary is not None or attention.qnorm is not None
        scale = 1.0 if turned else attention.scale
        self.qkv = _into(
            block.norm1,
            [attention.W_Q * scale, attention.W_K, attention.W_V],
            [None if attention.b_Q is None else attention.b_Q * scale, attention.b_K, attention.b_V],
        )
        self.W_O = attention.W_O.detach()
        self.b_O = None if attention.b_O is None else attention.b_O.detach()
        self.qk_rms = (
            None if attention.qnorm is None else self.W_O.new_tensor(math.sqrt(self.d_head * attention.qnorm.eps))
        )
        self.along, self.across = self._turns(attention, n_ctx) if turned else (None, None)
        self.mlp_kind = None if mlp is None else mlp.kind
        if mlp is not None:
            weights = [mlp.W_in] if mlp.W_gate is None else [mlp.W_gate, mlp.W_in]
            biases = [mlp.b_in] if mlp.W_gate is None else [None, mlp.b_in]
            self.W_out = mlp.W_out.detach()
            self.b_out = None if mlp.b_out is None else mlp.b_out.detach()
            if self.b_out is not None and mlp.W_gate is None and mlp.b_in is not None:
                weights, biases = self._constant_neuron(weights[0], mlp.b_in)
            self.mlp_in = _into(block.norm2, weights, biases)

    def _constant_neuron(self, W_in: Tensor, b_in: Tensor) -> tuple[list[Tensor], list[Tensor | None]]:
        """W_in and b_in with neurons that read nothing; the first is always act(1), and writes b_out / act(1).

        So that adding b_out is a part of the product before it. There are as many as keep rows at whole cache lines.
        """
        assert self.b_out is not None
        one = b_in.new_zeros(_LINE)
        one[0] = 1.0
        rows = self.W_out.new_zeros(_LINE, self.W_out.shape[1])
        rows[0] = self.b_out / ACTIVATIONS[self.mlp_kind or ""](one)[0]
        self.W_out, self.b_out = torch.cat((self.W_out, rows)), None
        return [W_in, W_in.new_zeros(W_in.shape[0], _LINE)], [b_in, one]

    def _turns(self, attention: MultiHeadAttention, n_ctx: int) -> tuple[Tensor, Tensor | None]:
        """Tables [n_ctx, n_qk, d_head] with q' = u along + swapped(u) across.

        The scale of the scores and QK-norm's gains are in them.
        """
        gains = self.W_O.new_ones(self.n_heads + self.n_kv, self.d_head)
        if attention.qnorm is not None and attention.knorm is not None:
            root = math.sqrt(self.d_head)
            gains[: self.n_heads] = attention.qnorm.gain * root
            gains[self.n_heads :] = attention.knorm.gain * root
        gains[: self.n_heads] *= attention.scale
        if attention.rotary is None:
            return gains.expand(n_ctx, -1, -1), None
        cos, sin, _ = attention.rotary.tables(n_ctx, gains.dtype, gains.device)
        along, across = torch.cat((cos, cos), 1)[:, None], torch.cat((-sin, sin), 1)[:, None]
        return along * gains, across * gains.roll(self.d_head // 2, dims=1)

    def step(
        self,
        x: Tensor,
        n: int,
        heads: _Heads,
        place: Tensor,
        recent: tuple[Tensor, Tensor],
        settled: tuple[Tensor, ...],
    ) -> Tensor:
        """x [batch, d_model] at position n -> the same after this block; its key and value go into `place`.

        place [2, batch, kv_head, d_head]; recent and settled are keys [batch * kv_head, d_head, pos] and values
        [batch * kv_head, pos, d_head], the recent ones with `place` among them. x is overwritten.
        """
        self.qkv(x, heads.joined)
        if self.qk_rms is not None:
            heads.qk.div_(torch.linalg.vector_norm(heads.qk, dim=-1, keepdim=True).hypot_(self.qk_rms))
        if self.across is not None and self.along is not None:
            swapped = heads.swapped()
            heads.qk.mul_(self.along[n]).addcmul_(swapped, self.across[n])
        elif self.along is not None:
            heads.qk.mul_(self.along[n])
        place.copy_(heads.kv)
        _attended(heads.queries(), recent, settled, heads.z)
        x = x.addmm_(heads.z_of_row, self.W_O)
        x = x if self.b_O is None else x.add_(self.b_O)
        return x if self.mlp_kind is None else self._mlp(x)

    def _mlp(self, x: Tensor) -> Tensor:
        h = self.mlp_in(x)
        if self.mlp_kind == "swiglu":
            gate, h = h.chunk(2, dim=1)
            h = F.silu(gate).mul_(h)
        else:
            h = ACTIVATIONS[self.mlp_kind or ""](h)
        x = x.addmm_(h, self.W_out)
        return x if self.b_out is None else x.add_(self.b_out)


def _attended(q: Tensor, recent: tuple[Tensor, Tensor], settled: tuple[Tensor, ...], z: Tensor) -> None:
    """Write into z [row, group, d_head] what queries that are scaled get; one query is batched products.

    Keys are [row, d_head, pos], values [row, pos, d_head]. The fused operator, made for long rows of queries, takes up
    to three times as long for it.
    """
    keys, values = recent
    scores = torch.bmm(q, keys)
    if not settled:
        torch.bmm(scores.softmax(-1), values, out=z)
        return
    older_keys, older_values = settled
    pattern = torch.cat((torch.bmm(q, older_keys), scores), dim=2).softmax(-1)
    n = older_keys.shape[2]
    torch.bmm(pattern[:, :, :n], older_values, out=z).baddbmm_(pattern[:, :, n:], values)


class Decoding:
    """Reads one token at a time after what a `KVCache` of the same model holds; for `torch.inference_mode`."""

    def __init__(self, model: LanguageModel) -> None:
        assert serves(model)
        self._embedding, self._n_ctx = model.embedding, model.sizes.n_ctx
        e = model.embedding
        self._is_plain = e.factor == 1.0 and e.sines is None and e.norm_e is None and e.W_type is None
        assert e.W_E is not None, "a language model reads tokens"
        self._W_E, self._W_pos = e.W_E.detach(), None if e.W_pos is None else e.W_pos.detach()
        layers = self._layers = [_Layer(cast(Block, block), self._n_ctx) for block in model.blocks]
        head = model.head
        W_U = head.W_U if head.W_U is not None else e.W_E.t()
        self._out = _into(model.norm_f, [W_U], [head.b_U])
        self._compiled = CompiledSteps(layers, self._out) if compiled_serves(layers) else None
        if self._compiled is not None:
            self._layers = layers[:1]  # the others are laid out once more in there

    @property
    def is_compiled(self) -> bool:
        """Whether a step is one call of compiled code."""
        return self._compiled is not None

    def _embedded(self, ids: Tensor, n: int) -> Tensor:
        """ids [batch] at position n -> [batch, d_model], in memory of its own."""
        if not self._is_plain:
            return self._embedding(ids[:, None], None, n)[:, 0]
        x = F.embedding(ids, self._W_E)
        return x if self._W_pos is None else x.add_(self._W_pos[n])

    def begin(self, cache: KVCache) -> None:
        """Go on from the positions in `cache`, which is not needed any more."""
        self.cache = SplitCache(cache, self._n_ctx)
        if self._compiled is not None:
            self._compiled.begin(self.cache, cache.batch)
        layer = self._layers[0]
        self._heads = _Heads(cache.batch, layer.n_heads, layer.n_kv, layer.d_head, layer.W_O)

    def end(self) -> None:
        """Let go of the cache."""
        del self.cache, self._heads

    def step(self, ids: Int[Tensor, "batch"]) -> Float[Tensor, "batch d_vocab"]:
        """Given the next token of each sequence, the logits for the one after it."""
        cache = self.cache
        x = self._embedded(ids, cache.length)
        if self._compiled is not None:
            logits = self._compiled.step(x, cache)
            cache.advance()
            return logits
        settled = cache.settled or ((),) * len(self._layers)
        for layer, place, recent, older in zip(self._layers, cache.places(), cache.recent(), settled, strict=True):
            x = layer.step(x, cache.length, self._heads, place, recent, older)
        cache.advance()
        return self._out(x)


_PROBE = 1 << 12
"""Numbers of a weight that are told from others by one number."""

_kept: "WeakKeyDictionary[LanguageModel, tuple[list[Tensor], Decoding | None]]" = WeakKeyDictionary()


def keep_layout(model: LanguageModel) -> None:
    """Let `decoding_of` keep what it lays out for this model, as much memory as its weights: it is read many times."""
    _kept[model] = ([], None)


def decoding_of(model: LanguageModel) -> Decoding:
    """A `Decoding` of the model as it is now, laid out anew where weights changed; `give_back` it after its last step.

    What was kept is only used by one caller at a time.
    """
    before, kept = _kept.get(model, ([], None))
    if kept is None:
        return Decoding(model)
    _kept[model] = (before, None)
    return kept if all(map(torch.equal, before, _probed(model))) else Decoding(model)


def give_back(model: LanguageModel, used: Decoding) -> None:
    """Keep it for the next one who asks, if the model is one of those."""
    if model in _kept:
        used.end()
        _kept[model] = (_probed(model), used)


def _probed(model: LanguageModel) -> list[Tensor]:
    """Each weight times one fixed random vector, piece by piece: equal only where what it computes is, up to rounding.

    Read at the speed of memory; counters of versions miss what is written to `.data` or by compiled code.
    """
    pieces = []
    for weight in (w.detach().flatten() for w in model.parameters()):
        by = torch.randn(_PROBE, generator=torch.Generator().manual_seed(0)).to(weight)
        n = len(weight) // _PROBE * _PROBE
        pieces += [weight[:n].view(-1, _PROBE) @ by, weight[n:] * by[: len(weight) - n]]
    return pieces
