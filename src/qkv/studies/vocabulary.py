"""The words that a question is put in: settings that arms share, and contrasts by what they compare.

A file of `studies/questions` is a table of these. A contrast is a level (what one arm measured), a difference of two
arms, the cost of one arm in loss beside another, or the difference of two such costs; and some say whether an arm is
worth asking about, which others then need.
"""

import dataclasses
from collections.abc import Sequence
from typing import TypedDict, Unpack

from qkv.studies.engine.design import Arm, Contrast, Pairs, Scale, Text
from qkv.studies.expectation import Expected

QUICK = Scale(
    d_model=32, n_layers=2, n_heads=2, n_ctx=32, batch_size=16, steps=300, val_tokens=8_192, evaluations=2
)  # fmt: skip
FULL = Scale(d_model=64, n_layers=2, n_heads=2, n_ctx=64, batch_size=16, steps=1000, val_tokens=32_768)
"""Sizes of most quick and full studies; what differs is said where it does."""


# arms


class Settings(TypedDict, total=False):
    """Fields of an `Arm` beside its name and words."""

    text: str
    task: str
    changes: tuple[str, ...]
    layout: Pairs
    sizes: Pairs
    optimizer: str
    lr: float
    tune: str
    trainer: str
    labels: str
    tables: tuple[tuple[str, str], ...]
    probes: tuple[str, ...]
    before: Pairs


def arm(name: str, what: str, *common: Settings, **own: Unpack[Settings]) -> Arm:
    """An arm with settings that it has in common with others; the later come before the earlier, its own before all."""
    settings: Settings = {}
    for each in (*common, own):
        settings |= each
    return Arm(name=name, what=what, **settings)


AT_START: Settings = {"trainer": "none", "tune": "none"}
"""Of an arm that is a model before training."""
GLOROT: Pairs = (("start", "xavier"),)
"""The layout of arms whose matrices start as Glorot has it."""
ANSWERS = 3
"""How many times the steps of a causal model a masked one gets where the two are compared as they ended: it is asked
30 % of the tokens that it reads, the other all of them."""
MASKED_LAYOUT: Pairs = (("positions", "rotary"), ("start", "xavier"))
SMALL_ROWS = ("W_E=random(0.02,train=true)",)
LEARNS_MASKED: Settings = {"layout": MASKED_LAYOUT, "changes": SMALL_ROWS}
"""Of the arms of studies that need a masked model to learn more than frequencies in their time. From N(0, 0.02) with
learned positions it stands still there; rotary positions and Glorot's start let it go on (docs/decisions,
2026-11-22-masked-arms-need-a-start-that-learns). Rows of W_E start small all the same: large ones would keep the
likenesses that they started with."""

IN_DEMO = (
    "Known not to hold in the default model of `make demo`. That is one run on Python's documentation: 4 layers,"
    " d_model 192, untied, Muon, 600 steps of 16 windows, with W_O, W_out and W_U starting at 0."
)
"""How `Question.elsewhere` begins; its figures are those of docs/answers/demo.json, which a test holds them to."""

RECALLED = Text(stream="recall", settings=(("keys", 8), ("values", 8)))
"""A table that is learned to be looked up within a study."""
RECALL_SIZES: Pairs = (("n_ctx", 32), ("batch_size", 32))
LEARNS_RECALL: Settings = {"text": "recall", "task": "recall", "lr": 0.003, "layout": GLOROT, "sizes": RECALL_SIZES}
"""Of arms on it: 1,000 steps recall all of it, d_model 64. Sixteen keys from N(0, 0.02) stay near what one gets who
knows which values were told but not where, and there a share of what was recalled is a share of nothing
(docs/decisions, 2026-11-24-rows-need-a-baseline-that-learned)."""


def shared(letters: str, n_layers: int = 2) -> tuple[str, ...]:
    """Changes by which one matrix serves as those of all letters, in every layer: that of the first."""
    first, *others = letters
    return tuple(f"L{i}.W_{other}=share(L{i}.W_{first})" for i in range(n_layers) for other in others)


# contrasts


ABOVE, BELOW = Expected(above=0.0), Expected(below=0.0)


def near(value: float, within: float) -> Expected:
    """At most `within` away from a value."""
    return Expected(near=value, within=within)


class Asked(TypedDict, total=False):
    """Fields of a `Contrast` that not every one says."""

    unit: str
    expected: Expected | None
    needs: str
    beside: tuple[str, ...]
    constant: bool


def level(name: str, what: str, arm: str, quantity: str, margin: float, **more: Unpack[Asked]) -> Contrast:
    """What an arm measured."""
    return Contrast(name=name, what=what, terms=((1.0, arm, quantity),), margin=margin, **more)


def difference(
    name: str, what: str, arm: str, other: str, quantity: str, margin: float, **more: Unpack[Asked]
) -> Contrast:
    """What an arm measured, minus what another did."""
    return Contrast(name=name, what=what, terms=((1.0, arm, quantity), (-1.0, other, quantity)), margin=margin, **more)


def cost(name: str, what: str, arm: str, baseline: str, margin: float, **more: Unpack[Asked]) -> Contrast:
    """loss(arm) - loss(baseline)."""
    return difference(name, what, arm, baseline, "loss", margin, **more)


def difference_of_costs(
    name: str,
    what: str,
    one: tuple[str, str],
    other: tuple[str, str],
    margin: float,
    quantities: tuple[str, str] = ("loss", "loss"),
    **more: Unpack[Asked],
) -> Contrast:
    """The cost of one (arm, baseline), less that of another, each in a quantity."""
    terms = (
        (sign * way, arm, quantity)
        for sign, pair, quantity in ((1.0, one, quantities[0]), (-1.0, other, quantities[1]))
        for way, arm in zip((1.0, -1.0), pair, strict=True)
    )
    return Contrast(name=name, what=what, terms=tuple(terms), margin=margin, **more)


# whether an arm is worth asking about

_LEARNED_NATS = 0.05
"""Below the loss of answer frequencies; less than that counts as nothing learned."""


def learned(arm: str) -> Contrast:
    """Whether an arm, which has the probe `learned`, ended below the loss of answer frequencies."""
    return level(
        f"learned ({arm})", "how much lower the loss is than with answer frequencies alone", arm,
        "beyond frequencies", _LEARNED_NATS, unit="nats per answer",
        expected=ABOVE,
    )  # fmt: skip


def of_learned(contrasts: Sequence[Contrast], arms: Sequence[str]) -> tuple[Contrast, ...]:
    """The same, and of each of those arms whether it learned anything, which all that reads it needs."""

    def of(contrast: Contrast) -> Contrast:
        needs = [learned(arm).name for arm in contrast.arms if arm in arms]
        return dataclasses.replace(contrast, needs=needs[0]) if needs else contrast

    return (*map(of, contrasts), *map(learned, arms))


def recalls(arm: str) -> Contrast:
    """Whether an arm, which has the probe `answers`, looks up what it is asked for, and does not only guess well.

    Who knows which of 8 values were told, but not where, is right about a third of the time.
    """
    return level(
        f"recalls ({arm})", "correct answers", arm, "answers", 50.0, unit="points of 100",
        expected=Expected(above=50.0),
    )  # fmt: skip


def of_recalling(contrasts: Sequence[Contrast], arm: str) -> tuple[Contrast, ...]:
    """The same, all of which need that arm to recall, and whether it does."""
    return (*(dataclasses.replace(contrast, needs=recalls(arm).name) for contrast in contrasts), recalls(arm))
