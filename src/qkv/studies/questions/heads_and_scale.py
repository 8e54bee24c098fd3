"""Do several heads beat one, and what if scores are not divided by sqrt(d_head)?

Heads are counted up at a fixed width of the model, where each becomes narrower, and at a fixed width of a head, where
the matrices grow with them. Scores go undivided at two starts: the usual N(0, 0.02), where they are small either way,
and Glorot's, where q and k have unit variance and the textbook's warning applies; there also at the learning rate that
was best with the division, so that what a new rate repairs is told from what it does not. Beside the loss: the entropy
of rows and the share of them that one key takes whole, at the start and at the end, and what finished heads are worth.
"""

import dataclasses

from qkv.studies.engine.design import Arm, Contrast, Design, Pairs, Text
from qkv.studies.question import Ask, Claim, Plain, Question, by_verdict, make_design, quick_or_full
from qkv.studies.verdict.judging import Findings
from qkv.studies.vocabulary import (
    AT_START,
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
    of_recalling,
)
from qkv.words import plural

__all__ = ["QUESTION"]

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


def _cost(arm: str, expected: str = "") -> Contrast:
    return cost(f"{arm} - {_BASE}", f"cost of {arm} against {_BASE}", arm, _BASE, MARGIN, expected=expected)


def _undivided(base: str, expected: tuple[str, str]) -> tuple[Contrast, ...]:
    own, same = f"{base}, undivided", f"{base}, undivided, same rate"
    return (
        cost(
            f"{own} - {base}", "cost of leaving the division out, each at its own rate", own, base, MARGIN,
            expected=expected[0],
        ),
        cost(
            f"{same} - {own}", "of leaving it out: what the rate of the divided scores costs, against its own", same,
            own, MARGIN, expected=expected[1],
        ),
    )  # fmt: skip


def _rows(arm: str, expected: str = "") -> tuple[Contrast, ...]:
    return (
        level(
            f"saturated rows: {arm}", "share of rows of attention with one key above 0.9", arm, "saturated", _SHARE,
            unit="of the rows", expected=expected,
        ),
        difference(
            f"entropy of rows: {arm}", "entropy of rows, less that of even rows, in shares of the latter", arm, _EVEN,
            "entropy share", _SHARE, unit="of the entropy of even rows",
        ),
    )  # fmt: skip


_SEVERAL = cost(
    f"{_ONE} - {_BASE}", "cost of one head as wide as the model, against four", _ONE, _BASE, MARGIN,
    expected="above 0",
)  # fmt: skip
_NEAR = ("near 0: scores start small either way", "near 0")
_OF_ROWS = (
    *_undivided(_GLOROT_ONE, ("above 0", "above 0 if a new rate repairs it")),
    *_rows(_ONE),
    *_rows(f"{_GLOROT_ONE}, undivided, untrained", "above 0: the textbook's warning"),
    *_rows(f"{_GLOROT_ONE}, undivided"),
    level(
        "pruned to one head", "loss of the finished model of 4 heads with only the dearest of each layer left (chosen"
        " on other windows), less its loss", _BASE, "pruned", MARGIN, expected="above 0",
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
            _cost("16 heads", "above 0: heads of width 2 can say little"),
            _cost("1 x 8", "above 0"),
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
            _cost("16 heads", "above 0: heads of width 4 can say little"),
            *(_cost(f"{n} x 16", "above 0") for n in (1, 2)),
            *(_cost(f"{n} x 16", "below 0") for n in (8, 16)),
            *of_recalling([_cost_of_recall(n) for n in (1, 16)], f"recall, {_BASE}"),
            *_undivided(_ONE, _NEAR),
            *_OF_ROWS,
        ),
    )  # fmt: skip


def _of_scale(findings: Findings) -> str:
    """What leaving the division out costs where q and k start with unit variance, each at its own rate."""
    return by_verdict(
        findings.effect(f"{_GLOROT_ONE}, undivided - {_GLOROT_ONE}").told,
        unresolved=" (what not dividing scores by sqrt(d_head) does {where} is open)",
        equivalent=" (not dividing scores by sqrt(d_head) does no harm {where}, with a rate of its own)",
        above=" (not dividing scores by sqrt(d_head) does {small}harm {where}, with a rate of its own)",
        below=" (not dividing scores by sqrt(d_head) does {small}good {where}, with a rate of its own)",
        small="a little ",
        where="where q and k start with unit variance",
    )


QUESTION = Question(
    name="heads-and-scale",
    asks="Do several heads beat one? What if scores are not divided by sqrt(d_k)?",
    answer=(
        "cost in nats of fewer and more heads at a fixed width of the model and of a head, of undivided scores at two"
        " starts and rates; entropy and saturation of rows; what finished heads are worth"
    ),
    falsified_by=(
        "One head is no worse than four; heads of width 2 to 4 cost nothing; at N(0, 0.02) undivided scores cost more"
        " than the margin; where q and k start with unit variance they cost nothing at the rate of the divided ones."
    ),
    literature=(
        "For translation, at equal compute, development perplexity was 5.29 with 1 head, 5.00 with 4, 4.92 with 8, 4.91"
        " with 16 and 5.01 with 32; keys of width 16 gave 5.16 (Vaswani et al. 2017, arXiv 1706.03762, table 3). That"
        " scores need dividing, since a product of d_k terms of variance 1 has variance d_k, is argued there and not"
        " measured. Of 48 encoder heads 38 could be pruned at a loss of 0.15 BLEU (Voita et al. 2019, arXiv 1905.09418,"
        " abstract). Heads narrower than a sequence is long are a bottleneck of rank (Bhojanapalli et al. 2020,"
        " arXiv 2002.07028, abstract). No paper was found that trains without the division, the rate tuned for it."
    ),
    plain=Plain.of(
        above="Several heads do better than one, at this size.",
        below="One head as wide as the model does better than several, at this size.",
        same="One head as wide as the model does {almost exactly }as well as several, at this size.",
        unresolved="Whether several heads do better than one, this run cannot tell.",
    ),
    also={
        f"{_GLOROT_ONE}, undivided - {_GLOROT_ONE}": Plain(
            above=(
                "Not dividing scores by sqrt(d_k) costs {effect} nats a token where q and k start with variance 1,"
                " the rate tuned for it."
            ),
            below=(
                "Not dividing scores by sqrt(d_k) saves {effect} nats a token where q and k start with variance 1,"
                " the rate tuned for it."
            ),
            slightly="Not dividing scores by sqrt(d_k) makes next to no difference, at a rate of its own.",
            equivalent="Not dividing scores by sqrt(d_k) makes no difference that matters, at a rate of its own.",
            unresolved="What not dividing scores by sqrt(d_k) does, this run cannot tell.",
        ),
    },
    heard=(
        "That scores are divided by sqrt(d_k), or training fails. The argument is about variance one: a product of"
        " d_k such terms has variance d_k. From a small start scores are near 0 with and without it, and a learning"
        " rate of its own makes good for much; the rows below tell the two starts apart."
    ),
    design=quick_or_full(_quick, _full),
    claim=Claim(
        unresolved="Whether several heads beat one is not settled by this run{beside}; {ends}",
        equivalent="One head as wide as the model does as well as four{beside}: {ends}",
        above="Several heads beat one{small}{beside}: {ends}",
        below="One head as wide as the model beats four{small}{beside}: {ends}",
        ends="with one head instead of four the loss changes by",
        beside=_of_scale,
    ),
)
