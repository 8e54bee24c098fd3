"""What moved q: whether a product changed between two steps because the encodings did or because the matrix did.

`x` is what enters W_Q, W_K and W_V of a layer (`L0.x`: after the norm, its gain included, where one stands before), on
one text, at steps A and B. For q = x W_Q + b_Q, with dx = x_B - x_A and dW_Q likewise, exactly

    dq = dx W_Q + (x dW_Q + db_Q) + dx dW_Q      encodings, matrix, both;  x and W_Q those of A

and the same for k and v. Every activation here is what its address names, so q and k are taken after QK-norm and rotary
turns. A turn is linear and the same at A and B, and turns each term. QK-norm is not linear: there each term is the same
difference of the map itself, f(x, W) = turn(norm(x W + b)), which is the formula above wherever f is linear,

    encodings  f(x_B, W_A) - f(x_A, W_A)
    matrix     f(x_A, W_B) - f(x_A, W_A)         W with its bias and the gain of QK-norm
    both       f(x_B, W_B) - f(x_B, W_A) - f(x_A, W_B) + f(x_A, W_A)

and `placed=False` gives the formula for q and k before QK-norm and turns. A score has three causes: ds splits into
encodings, W_Q, W_K, W_Q and W_K together, and what needs encodings and matrices both; hidden keys count as 0.

The terms sum to the change by algebra. A share is the signed projection <term, d> / <d, d>: shares sum to 1, and a
term that the others undo is above 1. Of q, k and v they are properties of this parametrisation: a change of basis that
alters no score alters them. Those of scores are of the function, encodings against matrices; W_Q against W_K is not.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.inspection.one_text import blocks_of, float64_copy
from qkv.instruments.gradients import shares_in_words
from qkv.models.attention import MultiHeadAttention
from qkv.models.layout import require_attention
from qkv.models.zoo import OneStack
from qkv.shapes import Float64, Int64


@dataclass(frozen=True, eq=False)
class ProductChange:
    """The change of one product in one layer on one text, and the terms that it is the sum of. Float64."""

    address: str
    """`L0.q`, `L0.scores`."""
    before: Float64[Tensor, "heads pos d_head"] | Float64[Tensor, "heads query_pos key_pos"]
    """A product (of k and v by key/value head), or scores."""
    after: Float64[Tensor, "heads pos d_head"] | Float64[Tensor, "heads query_pos key_pos"]
    terms: dict[str, Tensor]
    """encodings, matrix, both; of scores encodings, W_Q, W_K, W_Q and W_K, both. Each in the product's shape."""

    def __repr__(self) -> str:
        words = f"changed by {self.relative:.3g} of its size: {shares_in_words(self.shares)}"
        return f"ProductChange({self.address!r}, {list(self.before.shape)}, {words})"

    @property
    def change(self) -> Tensor:
        """after - before."""
        return self.after - self.before

    @property
    def relative(self) -> float:
        """|after - before| / |before|; NaN where before is 0."""
        size = float(self.before.norm())
        return float(self.change.norm()) / size if size else math.nan

    @property
    def shares(self) -> dict[str, float]:
        """Of each term in the whole change; NaN where nothing changed."""
        return {name: float(value) for name, value in self._shares((0, 1, 2)).items()}

    def shares_by_head(self) -> dict[str, Float64[Tensor, "heads"]]:
        """The same for each head."""
        return self._shares((1, 2))

    def shares_by_token(self) -> dict[str, Float64[Tensor, "pos"]]:
        """The same for each token (of scores: as query)."""
        return self._shares((0, 2))

    def _shares(self, over: tuple[int, ...]) -> dict[str, Tensor]:
        change = self.change
        size = (change * change).sum(over)
        return {name: (term * change).sum(over) / size for name, term in self.terms.items()}


def what_moved(a: OneStack, b: OneStack, ids: Int64[Tensor, "1 pos"], *, placed: bool = True) -> list[ProductChange]:
    """The changes of q, k, v and scores in every layer from model `a` to model `b` on one text.

    `a` and `b` are models of one configuration, such as two snapshots of a run; both are copied to float64.
    With `placed` False, q and k are taken before QK-norm and rotary turns and there are no scores; nor are there where
    scores are more than q k^T (windows, caps, ALiBi).

    Raises UserError for models without attention.
    """
    require_attention(a.sizes, a.layout)
    a, b = float64_copy(a), float64_copy(b)
    with torch.no_grad():
        records = [model.forward_recorded(ids)[1] for model in (a, b)]
        found: list[ProductChange] = []
        for block_a, block_b in zip(blocks_of(a), blocks_of(b), strict=True):
            x = [record[f"{block_a.name}.x"] for record in records]
            assert block_a.attention is not None and block_b.attention is not None
            found += _of_layer(block_a.name, (block_a.attention, block_b.attention), x, a.causal, placed)
    return found if a.layout.plain_scores else [one for one in found if not one.address.endswith(".scores")]


def first_queries_moved(
    a: OneStack, b: OneStack, x: Sequence[Float64[Tensor, "text pos d_model"]]
) -> list[ProductChange]:
    """The change of `L0.q` alone on each of several texts; `x` is `L0.x` of both models, which are in float64."""
    attention = [part for model in (a, b) if (part := blocks_of(model)[0].attention) is not None]
    with torch.no_grad():
        q = _placed_maps(attention)["q"]
        return [_linear("L0.q", q, [each[i : i + 1] for each in x]) for i in range(len(x[0]))]


def _of_layer(
    name: str, attention: Sequence[MultiHeadAttention], x: Sequence[Tensor], causal: bool, placed: bool
) -> list[ProductChange]:
    maps = _placed_maps(attention) if placed else _plain_maps(attention)
    found = [_linear(f"{name}.{product}", f, x) for product, f in maps.items()]
    if placed:
        found.append(_scores(f"{name}.scores", maps["q"], maps["k"], x, attention[0].scale, causal))
    return found


_Map = Callable[[Tensor, int], Tensor]
"""f(x, step) -> [head, pos, d_head]: the product of x under the matrices of A (0) or B (1)."""


def _placed_maps(attention: Sequence[MultiHeadAttention]) -> dict[str, _Map]:
    return {
        "q": lambda x, step: attention[step].queries(x)[0],
        "k": lambda x, step: attention[step].keys_values(x)[0][0],
        "v": lambda x, step: attention[step].keys_values(x)[1][0],
    }


def _plain_maps(attention: Sequence[MultiHeadAttention]) -> dict[str, _Map]:
    def by(letter: str) -> _Map:
        def product(x: Tensor, step: int) -> Tensor:
            part = attention[step]
            out, bias = x[0] @ getattr(part, f"W_{letter}"), getattr(part, f"b_{letter}")
            out = out if bias is None else out + bias
            return out.unflatten(-1, (-1, part.d_head)).transpose(0, 1)

        return product

    return {letter.lower(): by(letter) for letter in "QKV"}


def _linear(address: str, f: _Map, x: Sequence[Tensor]) -> ProductChange:
    before, after, moved_x, moved_w = f(x[0], 0), f(x[1], 1), f(x[1], 0), f(x[0], 1)
    terms = {"encodings": moved_x - before, "matrix": moved_w - before, "both": after - moved_x - moved_w + before}
    return ProductChange(address, before, after, terms)


def _scores(address: str, q: _Map, k: _Map, x: Sequence[Tensor], scale: float, causal: bool) -> ProductChange:
    """scale q k^T with the queries' and the keys' matrices as causes of their own; x is one cause for both."""

    def score(at_x: int, at_q: int, at_k: int) -> Tensor:
        queries, keys = q(x[at_x], at_q), k(x[at_x], at_k)
        keys = keys.repeat_interleave(len(queries) // len(keys), dim=0)
        table = scale * queries @ keys.mT
        return table.tril() if causal else table

    before, after = score(0, 0, 0), score(1, 1, 1)
    encodings, by_q, by_k, by_both = score(1, 0, 0), score(0, 1, 0), score(0, 0, 1), score(0, 1, 1)
    terms = {
        "encodings": encodings - before,
        "W_Q": by_q - before,
        "W_K": by_k - before,
        "W_Q and W_K": by_both - by_q - by_k + before,
        "both": after - encodings - by_both + before,
    }
    return ProductChange(address, before, after, terms)
