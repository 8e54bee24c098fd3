"""What the measures of research found, in sentences: answers like those that a run gives by itself."""

import math
from collections.abc import Sequence

import numpy as np

from qkv.inspection.answers.answer import Answer
from qkv.inspection.patching import LITTLE
from qkv.inspection.research.cka import Alike
from qkv.inspection.research.composition import Composition
from qkv.inspection.research.noise_scale import NoiseScale
from qkv.inspection.research.pairs import Attributed
from qkv.inspection.research.seeds import Spread
from qkv.words import listed, number, percent

_READS = {"Q": "queries", "K": "keys", "V": "values"}
_SHOWN = 10
"""Pairs of heads, sites and matrices whose numbers are shown."""


def of_composition(found: Composition) -> Answer:
    """The strongest pair beside the baseline, and how many pairs exceed it."""
    pairs = found.strongest(_SHOWN)
    score, kind, writer, reader = pairs[0]
    typical, high = found.random[kind]
    above = [f"{percent(share)} for {_READS[kind]}" for kind, share in found.above().items()]
    return Answer(
        key="composition",
        question="Which heads read what earlier heads write?",
        sentence=f"What {writer} writes enters the {_READS[kind]} of {reader} most: its composition score is"
        f" {number(score)}, and {number(typical)} for random heads.",
        more=(
            f"Above the limit that 2.5% of random pairs exceed: {listed(above)}.",
            "Scores come from the weights alone: norms, biases and rotary positions are left out.",
        ),
        numbers={f"{a} to {b}, {_READS[kind]}": score for score, kind, a, b in pairs},
        address=reader,
        null=f"Random heads are the same heads, turned at random: 97.5% of them score below {number(high)}.",
    )


def of_noise_scale(found: NoiseScale, example: str, batch: int) -> Answer:
    """How large a batch is useful; `batch` is the run's own, 0 where it is not known."""
    if math.isfinite(found.examples) and math.isfinite(found.high):
        interval = f"95% interval {found.low:,.0f} to {found.high:,.0f}, n = {found.n}"
        sentence = f"The gradient noise scale is about {found.examples:,.0f} {example} ({interval})."
    else:
        sentence = (
            f"The gradient noise scale is at least {found.low:,.0f} {example}: {found.n} of them cannot distinguish the"
            " mean gradient from zero."
        )
    own = (f"This run trained with {batch:,} {example} per step.",) if batch else ()
    return Answer(
        key="noise scale",
        question="How large a batch is useful?",
        sentence=sentence,
        more=(*own, "Far larger batches hardly improve a step; far smaller ones need more steps for the same tokens."),
        numbers={
            **_bounded(f"noise scale ({example})", found.examples, found.low, found.high),
            f"noise scale ({example} times targets in each)": _finite(found.examples * found.targets_each),
            "squared norm of the mean gradient": found.squared_gradient,
            "variance of one example's gradient": found.variance,
        },
        null="With McCandlish et al. 2018, B = tr(S) / |G|^2, at these weights and without dropout.",
    )


def of_cka(found: Sequence[tuple[str, Alike]], what: str, question: str) -> Answer:
    """The layers that differ most and least in the first comparison, and the numbers of all, by their names."""
    name, first = found[0]
    order = np.argsort(np.where(np.isfinite(first.same), first.same, np.inf))
    least, most = ((first.layers[0][i], number(float(first.same[i]))) for i in (order[0], order[-1]))
    numbers: dict[str, float | None] = {}
    for label, alike in found:
        for i, layer in enumerate(alike.layers[0][: len(alike.same)]):
            numbers |= _bounded(f"{layer}, {label}", alike.same[i], alike.low[i], alike.high[i])
    return Answer(
        key=f"cka {what}",
        question=question,
        sentence=f"Compared with {name}, the vectors of {least[0]} differ most (CKA {least[1]}), those of {most[0]}"
        f" least ({most[1]}).",
        more=(f"Linear CKA with the unbiased estimator, on the same {first.n:,} tokens.",),
        numbers=numbers,
        null="1 is the same up to rotation and scale; unrelated vectors have 0.",
    )


_SHARES = "0 keeps the answer to the first text, 1 makes it that to the second; shares do not sum to 1."


def of_pairs(found: Attributed) -> Answer:
    """The site that carries most, and how far the estimates agree with exact patching; nats where there is little."""
    top, order = int(np.argmax(found.share)), np.argsort(-np.abs(found.share))[:_SHOWN]
    order = order if top in order else np.append(order[:-1], top)
    little = found.difference < LITTLE
    unit, size = (", nats", found.difference) if little else ("", 1.0)
    more = ["Each share is a first-order estimate (attribution patching), poor where a large change saturates."]
    if found.exact is not None and found.correlation is not None:
        more.append(
            f"Exact patching ranks the {len(found.sites)} sites with a rank correlation of {number(found.correlation)}"
            f" to these estimates, and took {number(found.seconds[1] / found.seconds[0])} times as long."
        )
    numbers: dict[str, float | None] = {}
    for i in order:
        bounds = (float(values[i]) * size for values in (found.share, found.low, found.high))
        numbers |= _bounded(found.sites[i] + unit, *bounds)
        numbers |= {} if found.exact is None else {f"{found.sites[i]}{unit}: exact": float(found.exact[i]) * size}
    interval = f", 95% interval {percent(found.low[top])} to {percent(found.high[top])}" if found.n_pairs > 1 else ""
    sentence = f"{found.sites[top]} carries most of it: {percent(found.share[top])} (n = {found.n_pairs}{interval})."
    if found.share[top] <= 0 or found.low[top] <= 0:
        sentence = f"No site clearly carries it: the largest share is {percent(found.share[top])}, of"
        sentence += f" {found.sites[top]} (n = {found.n_pairs}{interval})."
    if little:
        sentence = (
            f"There is nothing to carry: the texts of a pair differ by only {found.difference:.2f} nats on average (n ="
            f" {found.n_pairs}), so effects are shown in nats. Give texts that the model answers differently."
        )
    return Answer(
        key="pairs",
        question="What carries the difference between the texts of a pair?",
        sentence=sentence,
        more=tuple(more),
        numbers=numbers,
        address=found.sites[top],
        null="" if little else _SHARES,
    )


def of_seeds(found: Spread) -> Answer:
    """The matrix whose measure differs most between runs, relative to its mean, at the last common step."""
    ends = {address: tuple(float(part[address].value[-1]) for part in found[:3]) for address in found.mean}
    of = {address: row for address, row in ends.items() if ".H" not in address and ".KV" not in address}
    top = max(of, key=lambda address: (of[address][2] - of[address][1]) / (abs(of[address][0]) or math.inf))
    (mean, low, high), series = of[top], found.mean[top]
    numbers: dict[str, float | None] = {}
    for address, values in of.items():
        numbers |= _bounded(address, *values)
    return Answer(
        key="seeds",
        question="How far do the runs agree?",
        sentence=f"{series.measure} varies most in {top}: {number(mean)} on average (95% interval"
        f" {number(low)} to {number(high)}, n = {found.n} runs, step {int(series.step[-1]):,}).",
        numbers=numbers,
        address=top,
        measure=series.measure,
    )


def _bounded(label: str, value: float, low: float, high: float) -> dict[str, float | None]:
    """A number, and the ends of its interval where it has one."""
    ends: dict[str, float | None] = (
        {f"{label}: low": float(low), f"{label}: high": _finite(high)} if math.isfinite(low) else {}
    )
    return {label: _finite(value), **ends}


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
