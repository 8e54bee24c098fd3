"""The gradient path: how the error at the output reaches what enters each block, and each token's embedding row.

Gradients are linear on their way back, so the gradient G at a block's `resid_pre` is a sum over the edges by which it
arrives there. With g the gradient at `resid_post` and J the Jacobians at this very forward pass:

    inner = J_norm2^T g (norm after) or g           what arrives at the sum  resid_mid + mlp_out
    u     = inner + J_mlp^T inner                   the gradient at resid_mid: around the MLP, and through it
    a     = J_norm1^T u or u                        what arrives at the sum  resid_pre + attn_out
    G     = a + J_V^T a + J_Q^T a + J_K^T a         J_V, J_Q, J_K: through v, q and k alone, the norm before included

Where attention and MLP stand side by side, both read `resid_pre`: G = g + J_mlp^T g + J_V^T g + J_Q^T g + J_K^T g.

Where a recurrence or a mean stands in place of attention, one term `mix` is in place of V, Q and K. `V`, `Q`, `K` are
the last three terms; the first, around attention, is parted by where it was just above: `MLP` came through the MLP,
`skip` came around both. Without skip connections `skip` and `MLP` are 0, and everything goes through attention.
Softmax, norms, rotary turns and QK-norm are differentiated where they stand; nothing is approximated.

A share is the signed projection of a part on the whole, <part, G> / <G, G>; shares sum to 1, and one that works against
the whole is negative. Both are of the function: no change of basis inside a head alters them. Source: the chain rule;
for the view of a model as a sum of paths Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from qkv.errors import UserError
from qkv.models.activations import Hook, recorder
from qkv.models.zoo import BlockStack, LanguageModel
from qkv.shapes import Float, Int, UInt8
from qkv.tasks.batch import Batch
from qkv.tasks.task import Objective
from qkv.words import many, percent

Name = TypeVar("Name", str, int)

PATHS = ("skip", "V", "Q", "K", "MLP")
"""The edges by which gradient reaches what enters a block."""

MIXED_PATHS = ("skip", "mix", "MLP")
"""The same where a recurrence or a mean stands in place of attention."""

OUTPUT = "output"
"""Of a tied W_E: the gradient of its other role, the output matrix."""


def shares(parts: Mapping[Name, Tensor], total: Float[Tensor, "..."]) -> dict[Name, float]:
    """<part, total> / <total, total> over all elements, by name; NaN where the total is 0. They sum to 1."""
    size = float((total * total).sum())
    return {name: float((part * total).sum()) / size if size else float("nan") for name, part in parts.items()}


def shares_in_words(found: Mapping[str, float]) -> str:
    """`skip 61%, V 20%`, for a person."""
    return ", ".join(f"{name} {percent(share)}" for name, share in found.items())


@dataclass(frozen=True, eq=False)
class Parts:
    """A gradient and the parts that it is the sum of."""

    address: str
    """Of what: `L0.resid_pre`, or `W_E` for rows of the table."""
    total: Float[Tensor, "batch pos d_model"] | Float[Tensor, "n_rows d_model"]
    """By backward from the loss, not by adding up parts."""
    parts: dict[str, Tensor]
    """By path, each in the shape of the total."""

    def __repr__(self) -> str:
        return f"Parts({self.address!r}, norm {self.norm:.3g}: {shares_in_words(self.shares)})"

    @property
    def shares(self) -> dict[str, float]:
        """Of each part in the whole tensor."""
        return shares(self.parts, self.total)

    @property
    def norm(self) -> float:
        """|G|, nats per unit."""
        return float(self.total.norm())

    def shares_by_row(self) -> dict[str, Tensor]:
        """The same of every position [batch, pos], or row [n_rows]; NaN where its gradient is 0."""
        size = (self.total * self.total).sum(-1)
        return {name: (part * self.total).sum(-1) / size for name, part in self.parts.items()}


@dataclass(frozen=True, eq=False)
class GradientPath:
    """The way of the gradient of one batch's mean loss through the whole model."""

    loss: float
    """Mean nats per target."""
    blocks: list[Parts]
    """At `L0.resid_pre`, `L1.resid_pre`, ...; parts by `PATHS`."""
    crossed: dict[int, float]
    """How many sublayers (attentions and MLPs) the gradient at `L0.resid_pre` went through -> its share; 0 is what came
    from the output along skip connections alone. The shares sum to 1."""
    row_ids: Int[Tensor, "n_rows"]
    """The tokens that stand in the batch, each once."""
    rows: Parts
    """At their rows of W_E; parts by `PATHS` of the first block, and `output` where W_E is tied."""

    def __repr__(self) -> str:
        crossed = shares_in_words({f"{n}:": share for n, share in self.crossed.items()})
        blocks, rows = many(len(self.blocks), "block"), many(len(self.row_ids), "row")
        return f"GradientPath(loss {self.loss:.3f}; {blocks}, {rows} of W_E; by sublayers crossed {crossed})"


def gradient_path(model: LanguageModel, task: Objective, batch: Batch, *, first_only: bool = False) -> GradientPath:
    """Follow the gradient of the mean loss of `batch` (nats per target) from the output down to the rows of W_E; with
    `first_only`, of `blocks` only the first is found, and of `crossed` only 0.

    `model` is a language model all of whose parameters require a gradient; nothing of it is changed, and no `.grad` is
    written. In float64 the parts sum to the totals to about 1e-15. Costs one forward pass by the explicit path, one
    backward pass, and some 8 (2 n_layers + 1) backward passes of one block for each block.
    """
    if not model.blocks:
        raise UserError("the model has no layers (n_layers=0), so no gradient passes through any")
    hook, record = recorder()
    with torch.enable_grad():
        nats, n_targets = task.loss(Instead(model, hook=hook), batch)
        loss = nats / n_targets
        table = model.embedding.W_E
        assert table is not None, "a language model reads tokens"
        names = [block.name for block in model.blocks]
        wanted = [*(record[f"{name}.resid_pre"] for name in names), record[f"{names[-1]}.resid_post"], table]
        *at_blocks, at_top, at_table = torch.autograd.grad(loss, wanted, retain_graph=True)
        above = [*at_blocks[1:], at_top]
        blocks = [
            Parts(f"{block.name}.resid_pre", at_blocks[i], _Block(block, record).parts(above[i]))
            for i, block in enumerate(model.blocks[:1] if first_only else model.blocks)
        ]
        crossed = _crossed(model, record, at_top, at_blocks[0], 0 if first_only else 2 * len(names))
        row_ids = batch.inputs.unique()
        by_path = {name: _back(record["embed"], table, part)[row_ids] for name, part in blocks[0].parts.items()}
        if model.head.W_U is None:
            nats, n = task.loss(Instead(model, hidden=record["norm_f"].detach()), batch)  # as output matrix alone
            by_path[OUTPUT] = torch.autograd.grad(nats / n, table)[0][row_ids]
    return GradientPath(float(loss.detach()), blocks, crossed, row_ids, Parts("W_E", at_table[row_ids], by_path))


class Instead:
    """A model whose hidden vectors are computed under a hook, or are given; everything else is the model's own."""

    def __init__(self, model: BlockStack, *, hook: Hook | None = None, hidden: Tensor | None = None) -> None:
        self._model, self._hook, self._hidden = model, hook, hidden

    def hidden(
        self,
        ids: Int[Tensor, "batch pos"]
        | Float[Tensor, "batch pos d_model"]
        | UInt8[Tensor, "batch channel height width"],
        **how: Any,
    ) -> Float[Tensor, "batch pos d_model"]:
        """Vectors after the last norm."""
        return self._model.hidden(ids, **how, hook=self._hook) if self._hidden is None else self._hidden

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)


class _Block:
    """The edges of one block, as they lie in the graph of a recorded forward pass."""

    def __init__(self, block: nn.Module, record: Mapping[str, Tensor]) -> None:
        self.skip, self.has_mlp = block.skip, block.mlp is not None
        self.parallel = block.parallel and self.has_mlp
        self._of = {name.removeprefix(f"{block.name}."): tensor for name, tensor in record.items()}
        self.attends = "attn_out" in self._of
        self.mixed = "attn_out" if self.attends else "mix_out"

    def around_and_through_mlp(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """The two parts of the gradient at `resid_mid`, given that at `resid_post`."""
        if not self.has_mlp:
            return g, torch.zeros_like(g)
        inner = _back(self._of["resid_post"], self._of["mlp_out"], g)
        around = inner if self.skip else torch.zeros_like(inner)
        return around, _back(self._of["mlp_out"], self._of["resid_mid"], inner)

    def at_sum(self, u: Tensor) -> Tensor:
        """What arrives at the sum of `resid_pre` and `attn_out` (or `mix_out`), given the gradient at `resid_mid`."""
        return _back(self._of["resid_mid"], self._of[self.mixed], u)

    def through_attention(self, a: Tensor) -> dict[str, Tensor]:
        """The parts of the gradient at `resid_pre` through v, q and k (or what mixes), given that at `attn_out`."""
        if not self.attends:
            return {"mix": _back(self._of[self.mixed], self._of["resid_pre"], a)}
        to = {"V": self._of["v"], "Q": self._of["q"], "K": self._of["k"]}
        arriving = torch.autograd.grad(self._of["attn_out"], list(to.values()), a, retain_graph=True)
        pre = self._of["resid_pre"]
        return {name: _back(to[name], pre, d) for name, d in zip(to, arriving, strict=True)}

    def around_attention(self, a: Tensor) -> Tensor:
        """The part at `resid_pre` that goes around attention."""
        return a if self.skip else torch.zeros_like(a)

    def parts(self, g: Tensor) -> dict[str, Tensor]:
        """All parts of the gradient at `resid_pre`, given that at `resid_post`."""
        if self.parallel:  # both read `resid_pre`, so no way goes through both of them
            beside = _back(self._of["mlp_out"], self._of["resid_pre"], g)
            found = {"skip": g, "MLP": beside} | self.through_attention(g)
        else:
            around, through = self.around_and_through_mlp(g)
            found = self.through_attention(self.at_sum(around + through))
            found["skip"] = self.around_attention(self.at_sum(around))
            found["MLP"] = self.around_attention(self.at_sum(through))
        return {name: found[name] for name in (PATHS if self.attends else MIXED_PATHS)}

    def around(self, g: Tensor) -> Tensor:
        """The part of the gradient at `resid_pre` that went through none of the block's sublayers."""
        return g if self.parallel else self.around_attention(self.at_sum(self.around_and_through_mlp(g)[0]))

    def by_crossings(self, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The parts of the gradient at `resid_pre` that went through 0, 1 and 2 of the block's sublayers."""
        nothing = torch.zeros_like(g)
        if self.parallel:
            around, *through_one = self.parts(g).values()
            return around, sum(through_one, nothing), nothing
        around, through = (self.at_sum(u) for u in self.around_and_through_mlp(g))
        once = sum(self.through_attention(around).values(), self.around_attention(through))
        return self.around_attention(around), once, sum(self.through_attention(through).values(), nothing)


def _crossed(
    model: LanguageModel, record: Mapping[str, Tensor], at_top: Tensor, at_bottom: Tensor, most: int
) -> dict[int, float]:
    """Shares of the gradient at the first `resid_pre` by the number of sublayers it went through, at most so many."""
    carried = {0: at_top}
    for block in reversed(model.blocks):
        edges, below = _Block(block, record), {}
        for n, g in carried.items():
            for more, part in enumerate(edges.by_crossings(g) if most else [edges.around(g)]):
                below[n + more] = below.get(n + more, 0) + part
        carried = below
    n_sublayers = sum(1 + (block.mlp is not None and not block.parallel) for block in model.blocks)
    present = {n: part for n, part in sorted(carried.items()) if n <= n_sublayers}
    return shares(present, at_bottom)


def _back(output: Tensor, onto: Tensor, gradient: Tensor) -> Tensor:
    """The vector-Jacobian product of `gradient` from `output` to `onto`; 0 where one does not depend on the other."""
    if output is onto:
        return gradient
    (found,) = torch.autograd.grad(output, onto, gradient, retain_graph=True, allow_unused=True)
    if found is None:
        return torch.zeros_like(onto)
    return found.to_dense() if found.is_sparse else found  # the rows of a large tied table come one by one
