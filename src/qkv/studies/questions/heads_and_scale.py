"""Do several heads beat one, and what if scores are not divided by sqrt(d_head)?

The number of heads varies at a fixed model width, where each head becomes narrower, and at a fixed head width, where
the matrices grow. Scores go undivided at two initializations: N(0, 0.02), where they are small either way, and Glorot,
where q and k have unit variance and the textbook's warning applies. There they are also trained at the learning rate
tuned with the division, which shows what a new rate repairs. Besides the loss: the entropy of attention rows and the
share of rows with one weight above 0.9, before and after training, and what finished heads are worth.
"""

import dataclasses

from qkv.studies.engine.design import Arm, Contrast, Design, Pairs, Text
from qkv.studies.expectation import Expected
from qkv.studies.question import Ask, make_design, quick_or_full, read_question
from qkv.studies.vocabulary import (
    ABOVE,
    AT_START,
    BELOW,
    FULL,
    GLOROT,
    LEARNS_RECALL,
    QUICK,
    RECALL_SIZES,
    RECALLED,
    Settings,
    arm,
    cost,
    difference,
    level,
    near,
    of_recalling,
)
from qkv.words import plural

MARGIN = 0.03
_SHARE = 0.05
"""Of rows, and of the entropy of even rows."""
_UNSCALED: Pairs = (("scale", False),)
_BASE, _ONE, _GLOROT_ONE, _EVEN = "4 heads", "1 head", "1 head, Glorot", "1 head, untrained"
_READ: Settings = {"sizes": (("n_heads", 1),), "probes": ("patterns",)}
"""Of one head whose rows of attention are read."""


def _count(n: int) -> str:
    return f"{n} {plural(n, 'head')}"


def _split(n: int, *probes: str) -> Arm:
    """The model's width cut into n heads."""
    return arm(_count(n), f"{_count(n)}, each d_model / {n} wide", sizes=(("n_heads", n),), probes=probes)


def _wide(n: int, d_head: int) -> Arm:
    """n heads of one width, whatever that adds up to."""
    return arm(f"{n} x {d_head}", f"{_count(n)} of width {d_head} each", sizes=(("n_heads", n), ("d_head", d_head)))


def _scaling(base: str, start: Pairs) -> tuple[Arm, ...]:
    """Beside an arm that divides its scores: undivided with a rate of its own, and at the rate of the first."""
    own, same = f"{base}, undivided", f"{base}, undivided, same rate"
    layout = (*start, *_UNSCALED)
    return (
        arm(own, "scores not divided by sqrt(d_head), the rate tuned for that", _READ, layout=layout),
        arm(same, "the same at the rate that is best with the division", _READ, layout=layout, tune=base),
    )


_FROM_GLOROT = (
    arm(_GLOROT_ONE, "Glorot's start, where entries of q and k have variance 1", _READ, layout=GLOROT),
    *_scaling(_GLOROT_ONE, GLOROT),
    # At N(0, 0.02) scores start so small that rows are even.
    arm(_EVEN, "1 head at the usual start, where rows are nearly even", _READ, AT_START),
    arm(
        f"{_GLOROT_ONE}, undivided, untrained", "scores not divided, at Glorot's start", _READ, AT_START,
        layout=(*GLOROT, *_UNSCALED),
    ),
)  # fmt: skip


def _cost(arm: str, expected: Expected | None = None) -> Contrast:
    return cost(f"{arm} - {_BASE}", f"cost of {arm} against {_BASE}", arm, _BASE, MARGIN, expected=expected)


def _undivided(base: str, expected: tuple[Expected, Expected]) -> tuple[Contrast, ...]:
    own, same = f"{base}, undivided", f"{base}, undivided, same rate"
    return (
        cost(
            f"{own} - {base}", "cost of undivided scores, each at its own rate", own, base, MARGIN,
            expected=expected[0],
        ),
        cost(
            f"{same} - {own}", "cost of undivided scores at the rate tuned with division, against their own rate", same,
            own, MARGIN, expected=expected[1],
        ),
    )  # fmt: skip


def _rows(arm: str, expected: Expected | None = None) -> tuple[Contrast, ...]:
    return (
        level(
            f"saturated rows: {arm}", "share of rows of attention with one key above 0.9", arm, "saturated", _SHARE,
            unit="of the rows", expected=expected,
        ),
        difference(
            f"entropy of rows: {arm}", "entropy of attention rows minus that of even rows, as a share of the latter",
            arm, _EVEN, "entropy share", _SHARE, unit="of the entropy of even rows",
        ),
    )  # fmt: skip


_SEVERAL = cost(
    f"{_ONE} - {_BASE}", "cost of one head as wide as the model, against four", _ONE, _BASE, MARGIN,
    expected=ABOVE,
)  # fmt: skip
_NEAR = (near(0.0, MARGIN), near(0.0, MARGIN))
_OF_ROWS = (
    *_undivided(_GLOROT_ONE, (ABOVE, ABOVE)),
    *_rows(_ONE),
    *_rows(f"{_GLOROT_ONE}, undivided, untrained", ABOVE),
    *_rows(f"{_GLOROT_ONE}, undivided"),
    level(
        "pruned to one head", "loss of the finished model of 4 heads with only the most useful head of each layer"
        " (chosen on other windows), minus its loss", _BASE, "pruned", MARGIN, expected=ABOVE,
    ),
)  # fmt: skip


def _quick(ask: Ask) -> Design:
    return make_design(
        ask,
        study="heads-and-scale",
        scale=dataclasses.replace(QUICK, n_heads=4),
        arms=(
            _split(4, "ablation"), _split(1, "patterns"), _split(16), _wide(1, 8),
            _scaling(_ONE, ())[0], *_FROM_GLOROT,
        ),
        contrasts=(
            _SEVERAL,
            _cost("16 heads", ABOVE),
            _cost("1 x 8", ABOVE),
            _undivided(_ONE, _NEAR)[0],
            *_OF_ROWS,
        ),
        replicates=5,
    )  # fmt: skip


def _of_recall(n: int) -> Arm:
    what, sizes = f"associative recall with {_count(n)}", (*RECALL_SIZES, ("n_heads", n))
    return arm(f"recall, {_count(n)}", what, LEARNS_RECALL, sizes=sizes, probes=("answers",))


def _cost_of_recall(n: int) -> Contrast:
    what = f"associative recall: cost of {_count(n)} against 4"
    some, base = f"recall, {_count(n)}", f"recall, {_BASE}"
    return cost(f"{some} - {base}", what, some, base, MARGIN, unit="nats per answer")


def _full(ask: Ask) -> Design:
    return make_design(
        ask,
        study="heads-and-scale",
        texts={"text": Text(), "recall": RECALLED},
        scale=dataclasses.replace(FULL, n_heads=4),
        arms=(
            _split(4, "ablation"), _split(1, "patterns"), *map(_split, (2, 8, 16)),
            *(_wide(n, 16) for n in (1, 2, 8, 16)), *_scaling(_ONE, ()), *_FROM_GLOROT, *map(_of_recall, (1, 4, 16)),
        ),
        contrasts=(
            _SEVERAL,
            *(_cost(_count(n)) for n in (2, 8)),
            _cost("16 heads", ABOVE),
            *(_cost(f"{n} x 16", ABOVE) for n in (1, 2)),
            *(_cost(f"{n} x 16", BELOW) for n in (8, 16)),
            *of_recalling([_cost_of_recall(n) for n in (1, 16)], f"recall, {_BASE}"),
            *_undivided(_ONE, _NEAR),
            *_OF_ROWS,
        ),
    )  # fmt: skip


QUESTION = read_question("heads-and-scale", design=quick_or_full(_quick, _full))
