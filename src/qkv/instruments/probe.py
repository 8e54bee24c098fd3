"""The fixed text on which attention is looked at: the same windows at every step, so that only the model changes.

Some windows of the validation text for what heads do on it, and random tokens that repeat once for the induction
score: few of them at every look, and at the start and at the end a wide probe, of which every window is kept by
itself, so that what is said of a head has an interval. The probe runs a forward pass of its own, without gradient, and
takes q and k of each attention before the fused kernel: nothing of the training is hooked, no random number of its is
drawn, no table of scores is made. (Models of two stacks run by the explicit path, which makes the tables of a probe's
few rows and drops them.)
"""

import contextlib
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice

import numpy as np
import torch
from torch import Tensor, nn

from qkv.instruments.attention_stats import INDUCTION, STATISTICS, attention_stats, induction_score
from qkv.instruments.tokens import specials
from qkv.models.attention import MultiHeadAttention
from qkv.models.blocks import Block
from qkv.models.layout import Layout, Sizes
from qkv.models.zoo import BlockStack, EncoderDecoder, EncoderDecoderLM
from qkv.randomness import generator
from qkv.shapes import Int64
from qkv.tasks.batch import Batch
from qkv.tasks.task import Data, Objective

__all__ = ["INDUCTION", "Probe", "fixed_batch", "spread_windows", "unmeasured"]

TOKENS = 128
"""At least one window of the text, and as many as fit into this many tokens."""
WINDOWS = 16
"""What is said of a head at the end is the mean over so many windows, or over all of the validation data."""
SPREAD_OVER = 1024
"""These are spread evenly over so many windows, the first ones."""
WIDE_BUCKETS = 4
"""Of pairs, each of which counts as a window, the wide probe has a batch of so many buckets: 78 of Multi30k."""
REPEATED = 128
"""The repeated text has at most this many tokens."""
BUCKETS = 33
"""Of examples that come in the order of their lengths, the middle one of this many batches is taken."""


def fixed_batch(task: Objective, corpus: Data, sizes: Sizes, n: int) -> Batch | None:
    """`n` windows of the validation data, the same at every call; None where there are none.

    Where batches are made of equal lengths (pairs) the first holds the shortest: one in the middle is taken instead.
    """
    batches = task.val_batches(corpus, sizes, n)
    if task.examples != "buckets":
        return next(iter(batches), None)
    first = list(islice(batches, BUCKETS))
    return first[len(first) // 2] if first else None


def spread_windows(task: Objective, corpus: Data, sizes: Sizes, *, causal: bool) -> Batch | None:
    """`WINDOWS` windows spread over the validation data, or all there are; `fixed_batch` where they are not all of one
    width. None where there are none. What fills a short window of a `causal` model is masked; targets are not kept.
    """
    kept: list[Batch] = []
    stride = 1
    batches = () if task.examples == "buckets" else islice(task.val_batches(corpus, sizes, 1), SPREAD_OVER)
    for i, window in enumerate(batches):
        if i % stride == 0:
            kept.append(_without_filling(window, causal))
        if len(kept) == 2 * WINDOWS:
            kept, stride = kept[::2], 2 * stride
    if len({window.inputs.shape for window in kept}) != 1:
        batch = fixed_batch(task, corpus, sizes, WIDE_BUCKETS if task.examples == "buckets" else WINDOWS)
        return None if batch is None else _without_filling(batch, causal)
    kept = [kept[i] for i in np.unique(np.linspace(0, len(kept) - 1, WINDOWS).round().astype(int))]
    inputs = torch.cat([window.inputs for window in kept])
    documents = [window.documents for window in kept if window.documents is not None]
    mask = None
    if any(window.mask is not None for window in kept):
        whole = torch.ones(kept[0].inputs.shape[:2], dtype=torch.bool)
        mask = torch.cat([whole if window.mask is None else window.mask for window in kept])
    return Batch(inputs, inputs, mask=mask, documents=torch.cat(documents) if documents else None)


def _without_filling(batch: Batch, causal: bool) -> Batch:
    """With a mask where causal windows are shorter than the batch: what fills them asks for nothing."""
    if batch.mask is not None or batch.positions is None or not causal:
        return batch
    real = torch.zeros(batch.inputs.shape, dtype=torch.bool)
    real.view(-1)[batch.positions] = True
    return batch._replace(mask=real)


@dataclass(frozen=True)
class _Attention:
    """One attention of a model: where it stands, and whether it reads its own sequence."""

    name: str
    """What its activations' names begin with: `L0`, `dec.L1.cross`."""
    layer: int
    module: MultiHeadAttention
    stack: str
    """`enc.`, `dec.`, or nothing."""
    causal: bool
    itself: bool


def unmeasured(layout: Layout) -> str:
    """Why no head of a model of this layout is measured, in a sentence; empty where they are, or where it has none."""
    if layout.plain_scores or layout.mixer != "attention":
        return ""
    return (
        "What heads attend to is not measured: this model has a window, sinks, capped scores, or alibi or relative"
        " positions; qkv show RUN --text TEXT shows it on one text."
    )


def _attentions(model: nn.Module) -> list[_Attention]:
    """Every attention of a model in the order of its forward pass; none where it has none of the kind known here."""
    stacks: list[tuple[str, BlockStack]] = [("", model)] if isinstance(model, BlockStack) else []
    if isinstance(model, EncoderDecoder):
        stacks = [("enc.", model.enc), ("dec.", model.dec)]
    stacks = [] if any(unmeasured(stack.layout) for _, stack in stacks) else stacks
    found = []
    for scope, stack in stacks:
        causal = bool(stack.causal)
        for block in stack.blocks:
            assert isinstance(block, Block)
            if block.attention is not None:
                found.append(_Attention(block.name, block.layer, block.attention, scope, causal, True))
            if block.cross is not None:
                found.append(_Attention(f"{block.name}.cross", block.layer, block.cross, scope, False, False))
    return found


_Seen = tuple[_Attention, Tensor, Tensor, tuple[Tensor, ...] | None]
"""An attention, its q and k on the batch, and those on the repeated text where that had a pass of its own."""


def _together(seen: Iterable[_Seen]) -> Iterator[_Seen]:
    """Attentions that follow one another and look at the same in the same way as one with the heads of all of them:
    what is asked of a head is asked once, and not of each layer.
    """

    def way(one: _Seen) -> tuple[Hashable, ...]:
        attention, q, k, _ = one
        return attention.stack, attention.itself, attention.causal, attention.module.scale, q.shape, k.shape

    for _, each in groupby(seen, way):
        group = list(each)
        q, k = (torch.cat(same, dim=1) for same in zip(*[(q, k) for _, q, k, _ in group], strict=True))
        own_passes = [again for *_, again in group if again is not None]
        again = tuple(torch.cat(same, dim=1) for same in zip(*own_passes, strict=True))
        yield group[0][0], q, k, again or None


@dataclass(frozen=True)
class Probe:
    """What is run: a batch of the task's, and token ids that repeat; None where the model takes none."""

    batch: Batch
    repeated: Int64[Tensor, "n_texts twice_period"] | None

    @staticmethod
    def of(
        task: Objective, corpus: Data | None, model: nn.Module, seed: int, *, is_wide: bool = False
    ) -> "Probe | None":
        """The probe of a training; None for a model without attention of the kind that is known here.

        `is_wide`: 16 windows spread over the validation data, and as many texts that repeat.
        """
        sizes, attentions = getattr(model, "sizes", None), _attentions(model)
        if corpus is None or sizes is None or not attentions or sizes.n_ctx < 2:
            return None
        causal = all(attention.causal for attention in attentions)
        if is_wide:
            batch = spread_windows(task, corpus, sizes, causal=causal)
        else:
            batch = fixed_batch(task, corpus, sizes, max(1, TOKENS // sizes.n_ctx))
        if batch is None:
            return None
        batch = _without_filling(batch, causal)
        period, repeated = min(sizes.n_ctx, REPEATED) // 2, None
        alone = all(attention.itself for attention in attentions)
        if alone and sizes.d_vocab and period > 1 and not batch.inputs.is_floating_point():
            special = set(specials(getattr(corpus, "tokenizer", None)).values())
            ordinary = np.array([i for i in range(sizes.d_vocab) if i not in special])
            n_texts = len(batch.inputs) if is_wide else 1
            once = generator("probe", "repeated", seed).choice(ordinary, size=(n_texts, period))
            repeated = torch.from_numpy(np.concatenate([once, once], axis=1))
        return Probe(batch, repeated)

    def addresses(self, model: nn.Module) -> list[tuple[str, int, int]]:
        """(address, layer, head) of every pattern that `read` speaks of, in its order."""
        heads = ((each, head) for each in _attentions(model) for head in range(each.module.n_heads))
        return [(f"{each.name}.H{head}.pattern", each.layer, head) for each, head in heads]

    @property
    def measures(self) -> tuple[str, ...]:
        """The names of what `read` gives."""
        return (*STATISTICS, INDUCTION) if self.repeated is not None else tuple(STATISTICS)

    @torch.no_grad()
    def read(self, model: nn.Module, *, by_window: bool = False) -> np.ndarray:
        """Every statistic of every head now: float64 [measure, head], NaN where undefined; of a wide probe `by_window`,
        [measure, head, window].
        """
        device = next(model.parameters()).device
        batch, layers, scores = self.batch.to(device), [], []
        period = 0 if self.repeated is None else self.repeated.shape[1] // 2
        for attention, q, k, again in _together(self._passes(model, batch, device)):
            reads_source = attention.stack == "enc." or not attention.itself
            found = attention_stats(
                q,
                k,
                scale=attention.module.scale,
                causal=attention.causal,
                documents=batch.documents,
                keys=batch.source_mask if reads_source else batch.mask,
                queries=None if attention.itself else batch.mask,
                itself=attention.itself,
                period=period if again is None else 0,
                by_window=by_window,
            )
            layers.append(np.stack([found[name] for name in STATISTICS]))
            if again is not None:
                scale, causal = attention.module.scale, attention.causal
                scores.append(induction_score(*again, scale=scale, period=period, causal=causal, by_window=by_window))
            elif period:
                scores.append(found[INDUCTION])
        values = np.concatenate(layers, axis=1)
        return np.concatenate([values, np.concatenate(scores)[None]]) if scores else values

    def _passes(self, model: nn.Module, batch: Batch, device: torch.device) -> Iterator[_Seen]:
        """q and k of each attention on the batch, and on the repeated text. Where one pass does for both, that text is
        the last sequence of the batch.
        """
        if self.repeated is None:
            for attention, q, k in _queries_keys(model, batch):
                yield attention, q, k, None
            return
        repeated, width = self.repeated.to(device), batch.inputs.shape[1]
        n = repeated.shape[1]
        plain = batch.mask is None and batch.documents is None and len(repeated) == 1
        # on the right of what is read there may stand anything where nobody looks to the right
        if plain and (n == width or (n < width and all(a.causal for a in _attentions(model)))):
            longer = repeated.repeat(1, -(-width // n))[:, :width]
            both = Batch(inputs=torch.cat([batch.inputs, longer]), targets=longer)
            for attention, q, k in _queries_keys(model, both):
                yield attention, q, k, None
            return
        again = _queries_keys(model, Batch(inputs=repeated, targets=repeated))
        for (attention, q, k), (_, q2, k2) in zip(_queries_keys(model, batch), again, strict=True):
            yield attention, q, k, (q2, k2)


class _Enough(Exception):
    """Everything has been seen; what is left of the pass would tell nothing."""


def _queries_keys(model: nn.Module, batch: Batch) -> Iterator[tuple[_Attention, Tensor, Tensor]]:
    """q and k of each attention as they meet in the scores, in order, from one pass in evaluation mode's formulas."""
    attentions = _attentions(model)
    if isinstance(model, EncoderDecoderLM):
        yield from _of_pairs(model, attentions, batch)
        return
    assert isinstance(model, BlockStack)
    found: list[tuple[_Attention, Tensor, Tensor]] = []

    def see(block: nn.Module, x: Tensor) -> None:
        attention = attentions[len(found)]
        assert isinstance(block, Block)
        h = block.norm1(x) if block.pre and block.norm1 is not None else x
        found.append((attention, attention.module.queries(h), attention.module.keys(h)))
        if len(found) == len(attentions):
            raise _Enough

    with contextlib.suppress(_Enough):
        model.hidden(batch.inputs, mask=batch.mask, documents=batch.documents, see=see, types=batch.types)
    yield from found


def _of_pairs(
    model: EncoderDecoderLM, attentions: list[_Attention], batch: Batch
) -> Iterator[tuple[_Attention, Tensor, Tensor]]:
    """The same of an encoder and a decoder on a batch of pairs."""
    kept: dict[str, Tensor] = {}

    def hook(name: str, x: Tensor) -> Tensor:
        if name.endswith((".q", ".k")):
            kept[name] = x
        return x

    assert batch.source is not None
    model.hidden(batch.source, batch.inputs, source_mask=batch.source_mask, hook=hook)
    for attention in attentions:
        yield attention, kept[f"{attention.name}.q"], kept[f"{attention.name}.k"]
