"""Long short-term memory and the bag: what stands in a block in place of attention, with the same outer signature.

For the vectors x_t of a sequence, with h_0 = c_0 = 0 (Hochreiter and Schmidhuber 1997; forget gate Gers et al. 2000),

    [i f g o] = x_t W_ih + h_{t-1} W_hh + b_ih        c_t = s(f) c_{t-1} + s(i) tanh(g)        h_t = s(o) tanh(c_t)

s the logistic function, gates in torch's order; torch's two biases are one here, their sum. Where a model sees both
sides, half of the width reads forwards and half backwards (`W_ih_back` and so on), side by side. Documents begin with a
state of 0, and padding leaves the state as it is. Attention, cross-attention and an encoder-decoder are not made here.

The recurrence is one hand-written function, forward and backward: a small product and a few operators a position, and
all that does not wait for the position before at once. The formula in plain operators is its oracle, and serves under
torch.compile and away from a CPU.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from qkv.kernels import autograd
from qkv.kernels.attention import Stream
from qkv.kernels.cache import Cache, KVCache, StateCache
from qkv.models.activations import Hook
from qkv.models.layout import Layout, Sizes
from qkv.models.masks import Visible

State = tuple[Tensor, Tensor]
"""h and c of every sequence, [batch, width] each."""


class _Mixer(nn.Module):
    """What a block has in place of attention; abstract."""

    def mixed(
        self,
        h: Stream,
        to: Visible,
        *,
        cache: Cache | None = None,
        layer: int = 0,
        name: str = "",
        hook: Hook | None = None,
    ) -> Stream:
        """Each position from those that `to` lets it see, as `MultiHeadAttention.mixed`.

        Its activations are `x` and `mix_out`.
        """
        h = hook(f"{name}.x", h) if hook else h
        out = self._mixed(h, to, cache, layer, plain=hook is not None)
        return hook(f"{name}.mix_out", out) if hook else out

    def _mixed(self, h: Tensor, to: Visible, cache: Cache | None, layer: int, *, plain: bool) -> Tensor:
        raise NotImplementedError


class Mean(_Mixer):
    """The mean of all positions that may be seen: attention that weighs everything alike, without a matrix.

    Over token rows it is the bag of words (Iyyer et al. 2015, "Deep averaging networks", P15-1162).
    """

    def __init__(self, sizes: Sizes, layout: Layout, *, causal: bool) -> None:
        super().__init__()

    def _mixed(self, h: Tensor, to: Visible, cache: Cache | None, layer: int, *, plain: bool) -> Tensor:
        """The mean; a `cache` holds the vectors read so far."""
        assert cache is None or isinstance(cache, KVCache)
        keys = h if cache is None else cache.append(layer, h[:, None], h[:, None])[0][:, 0]
        if to.bias is not None:
            return (to.bias[:, 0].to(h.dtype).softmax(-1) @ keys).expand_as(h)
        if to.causal:
            counts = torch.arange(1, h.shape[1] + 1, device=h.device, dtype=h.dtype)[:, None]
            return keys.cumsum(dim=1) / counts
        return keys.mean(dim=1, keepdim=True).expand_as(h)


class LSTM(_Mixer):
    """h_t of every position. W_ih [d_model, 4 width], W_hh [width, 4 width], b_ih [4 width]; columns i, f, g, o.

    `width` is d_model, or half of it for each direction where both sides are seen.
    """

    def __init__(self, sizes: Sizes, layout: Layout, *, causal: bool) -> None:
        super().__init__()
        d, self.causal = sizes.d_model, causal
        self.width = d if causal else d // 2
        for back in ("",) if causal else ("", "_back"):
            setattr(self, f"W_ih{back}", nn.Parameter(torch.empty(d, 4 * self.width)))
            setattr(self, f"W_hh{back}", nn.Parameter(torch.empty(self.width, 4 * self.width)))
            setattr(self, f"b_ih{back}", nn.Parameter(torch.empty(4 * self.width)))

    def _mixed(self, h: Tensor, to: Visible, cache: Cache | None, layer: int, *, plain: bool) -> Tensor:
        """h_t; a `cache` holds the state after the positions read so far."""
        assert cache is None or isinstance(cache, StateCache)
        if self.causal:
            state = None if cache is None else cache.states.get(layer)
            out, state = self._read(h, to.keys, to.documents, "", state, plain=plain)
            if cache is not None:
                cache.states[layer] = state
            return out
        keys, documents = (None if part is None else part.flip(1) for part in (to.keys, to.documents))
        forwards, _ = self._read(h, to.keys, to.documents, "", None, plain=plain)
        backwards, _ = self._read(h.flip(1), keys, documents, "_back", None, plain=plain)
        return torch.cat((forwards, backwards.flip(1)), dim=-1)

    def _read(
        self, x: Tensor, keys: Tensor | None, documents: Tensor | None, back: str, state: State | None, *, plain: bool
    ) -> tuple[Tensor, State]:
        """(h of every position in the order given, [batch, pos, width]; the state after the last)."""
        w_ih, w_hh, bias = (getattr(self, f"{name}{back}") for name in ("W_ih", "W_hh", "b_ih"))
        n, wide = x.shape[1], torch.float64 if x.dtype == torch.float64 else torch.float32
        inputs = F.linear(x.transpose(0, 1).contiguous(), w_ih.t(), bias).to(wide)
        if state is None:
            zero = inputs.new_zeros(x.shape[0], self.width)
            state = zero, zero
        real = None if keys is None else keys[:, -n:].t()[..., None]
        carried = None
        if documents is not None:
            same = documents[:, 1:] == documents[:, :-1]
            first = same.new_ones(x.shape[0], int(documents.shape[1] == n))
            carried = torch.cat((first, same), dim=1)[:, -n:].t()[..., None].to(wide)
        run = _Recurrence.apply if autograd.serves(x) and not plain else _formula
        out, cells = run(inputs, w_hh.to(wide), *state, carried, real)
        return out.transpose(0, 1).to(x.dtype), (out[-1], cells[-1])


def _formula(
    inputs: Tensor, weight: Tensor, h: Tensor, c: Tensor, carried: Tensor | None, real: Tensor | None
) -> tuple[Tensor, Tensor]:
    """h and c of every position, [pos, batch, width], by the formulas of this module.

    inputs [pos, batch, 4 width] is x W_ih + b_ih, weight W_hh [width, 4 width]; h, c [batch, width] the state before;
    carried [pos, batch, 1] 0 where a document begins; real [pos, batch, 1] False where the state stays as it is.
    """
    states, cells = [], []
    for t in range(len(inputs)):
        h, c = (h, c) if carried is None else (h * carried[t], c * carried[t])
        i, f, g, o = (inputs[t] + h @ weight).chunk(4, dim=-1)
        cell = f.sigmoid() * c + i.sigmoid() * g.tanh()
        new = o.sigmoid() * cell.tanh()
        h, c = (new, cell) if real is None else (torch.where(real[t], new, h), torch.where(real[t], cell, c))
        states.append(h)
        cells.append(c)
    return torch.stack(states), torch.stack(cells)


class _Recurrence(Function):
    """`_formula`, with its gradient by hand; the last state's c and the first state take none."""

    @staticmethod
    def forward(
        ctx: autograd.Context,
        inputs: Tensor,
        weight: Tensor,
        h: Tensor,
        c: Tensor,
        carried: Tensor | None,
        real: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        n, batch, width = len(inputs), inputs.shape[1], weight.shape[0]
        gates = inputs.clone()
        shape = (n, batch, width)
        before_h, before_c, tanh_c, states, cells = (inputs.new_empty(shape) for _ in range(5))
        for t in range(n):
            if carried is not None:
                h, c = h * carried[t], c * carried[t]
            before_h[t], before_c[t] = h, c
            a = gates[t].addmm_(h, weight)
            a[:, : 2 * width].sigmoid_()
            i, f, g, o = a.split(width, dim=1)
            g.tanh_()
            o.sigmoid_()
            cell = torch.mul(f, c).addcmul_(i, g)
            torch.tanh(cell, out=tanh_c[t])
            new = o * tanh_c[t]
            h, c = (new, cell) if real is None else (torch.where(real[t], new, h), torch.where(real[t], cell, c))
            states[t], cells[t] = h, c
        ctx.save_for_backward(gates, before_h, before_c, tanh_c, weight, carried, real)
        ctx.mark_non_differentiable(cells)
        return states, cells

    @staticmethod
    @autograd.once_differentiable
    def backward(ctx: autograd.Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad, _ = grads
        gates, before_h, before_c, tanh_c, weight, carried, real = ctx.saved_tensors
        width = weight.shape[0]
        i, f, g, o = gates.split(width, dim=2)
        slopes = torch.empty_like(gates)  # of c by the first three gates before s and tanh, of h by the last
        by_i, by_f, by_g, by_o = slopes.split(width, dim=2)
        torch.mul(g, i - i * i, out=by_i)
        torch.mul(before_c, f - f * f, out=by_f)
        torch.mul(i, 1 - g * g, out=by_g)
        torch.mul(tanh_c, o - o * o, out=by_o)
        of_cell = o * (1 - tanh_c * tanh_c)
        dh_next, dc_next = torch.zeros_like(grad[0]), torch.zeros_like(grad[0])
        for t in reversed(range(len(grad))):
            dh, dc = grad[t] + dh_next, dc_next
            passed = None
            if real is not None:
                passed = dh.masked_fill(real[t], 0), dc.masked_fill(real[t], 0)
                dh, dc = dh * real[t], dc * real[t]
            dc = torch.addcmul(dc, dh, of_cell[t])
            slope = slopes[t]
            slope.view(-1, 4, width)[:, :3].mul_(dc[:, None])
            slope[:, 3 * width :].mul_(dh)
            dh_next, dc_next = slope @ weight.t(), dc * f[t]
            if passed is not None:
                dh_next, dc_next = dh_next + passed[0], dc_next + passed[1]
            if carried is not None:
                dh_next, dc_next = dh_next * carried[t], dc_next * carried[t]
        d_weight = before_h.flatten(0, 1).t() @ slopes.flatten(0, 1) if ctx.needs_input_grad[1] else None
        return slopes, d_weight, None, None, None, None


MIXERS = {"lstm": LSTM, "mean": Mean}
"""`Layout.mixer` -> what stands in place of attention."""
