"""Do several heads beat one, and what if scores are not divided by sqrt(d_head)?

Heads are counted up at a fixed width of the model, where each becomes narrower, and at a fixed width of a head, where
the matrices grow with them. Scores go undivided at two starts: the usual N(0, 0.02), where they are small either way,
and Glorot's, where q and k have unit variance and the textbook's warning applies; there also at the learning rate that
was best with the division, so that what a new rate repairs is told from what it does not. Beside the loss: the entropy
of rows and the share of them that one key takes whole, at the start and at the end, and what finished heads are worth.
"""

from typing import Any

from qkv.studies.engine.design import Arm, Contrast, Design, Grid, Scale, Text, cost
from qkv.studies.question import LEARNS_RECALL, RECALLED, Ask, Plain, Question, make_design, of_recalling
from qkv.studies.verdict.judging import Findings
from qkv.words import plural

__all__ = ["QUESTION"]

MARGIN = 0.03
_SHARE = 0.05
"""Of rows, and of the entropy of even rows."""
_GLOROT: tuple[tuple[str, Any], ...] = (("start", "xavier"),)
_UNSCALED: tuple[tuple[str, Any], ...] = (("scale", False),)
_BASE, _ONE, _GLOROT_ONE = "4 heads", "1 head", "1 head, Glorot"


def _count(n: int) -> str:
    return f"{n} {plural(n, 'head')}"


def _split(n: int, **more: Any) -> Arm:
    """The model's width cut into n heads."""
    return Arm(name=_count(n), what=f"{_count(n)}, each d_model / {n} wide", sizes=(("n_heads", n),), **more)


def _wide(n: int, d_head: int, **more: Any) -> Arm:
    """n heads of one width, whatever that adds up to."""
    sizes = (("n_heads", n), ("d_head", d_head))
    return Arm(name=f"{n} x {d_head}", what=f"{_count(n)} of width {d_head} each", sizes=sizes, **more)


def _scaling(base: str, start: tuple[tuple[str, Any], ...]) -> tuple[Arm, ...]:
    """Beside an arm that divides its scores: undivided with a rate of its own, and at the rate of the first."""
    sizes, layout = (("n_heads", 1),), (*start, *_UNSCALED)
    return (
        Arm(
            name=f"{base}, undivided", what="scores not divided by sqrt(d_head), the rate tuned for that", sizes=sizes,
            layout=layout, probes=("patterns",),
        ),
        Arm(
            name=f"{base}, undivided, same rate", what="the same at the rate that is best with the division",
            sizes=sizes, layout=layout, tune=base, probes=("patterns",),
        ),
    )  # fmt: skip


def _glorot() -> Arm:
    return Arm(
        name=_GLOROT_ONE, what="Glorot's start, where entries of q and k have variance 1", sizes=(("n_heads", 1),),
        layout=_GLOROT, probes=("patterns",),
    )  # fmt: skip


def _start() -> Arm:
    return Arm(
        name=f"{_GLOROT_ONE}, undivided, untrained", what="scores not divided, at Glorot's start",
        sizes=(("n_heads", 1),), layout=(*_GLOROT, *_UNSCALED), trainer="none", tune="none",
        probes=("patterns",),
    )  # fmt: skip


def _cost(arm: str, baseline: str, expected: str = "") -> Contrast:
    return cost(f"{arm} - {baseline}", f"cost of {arm} against {baseline}", arm, baseline, MARGIN, expected=expected)


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
        Contrast(
            name=f"saturated rows: {arm}", what="share of rows of attention with one key above 0.9",
            terms=((1.0, arm, "saturated"),), margin=_SHARE, unit="of the rows", expected=expected,
        ),
        Contrast(
            name=f"entropy of rows: {arm}", what="entropy of rows, less that of even rows, in shares of the latter",
            terms=((1.0, arm, "entropy share"), (-1.0, _EVEN, "entropy share")), margin=_SHARE,
            unit="of the entropy of even rows",
        ),
    )  # fmt: skip


_EVEN = "1 head, untrained"
"""At N(0, 0.02) scores start so small that rows are even."""


def _even() -> Arm:
    return Arm(
        name=_EVEN, what="1 head at the usual start, where rows are nearly even", sizes=(("n_heads", 1),),
        trainer="none", tune="none", probes=("patterns",),
    )  # fmt: skip


def _design(ask: Ask) -> Design:
    return _quick(ask) if ask.quick else _full(ask)


def _several() -> Contrast:
    return cost(
        f"{_ONE} - {_BASE}", "cost of one head as wide as the model, against four", _ONE, _BASE, MARGIN,
        expected="above 0",
    )  # fmt: skip


def _quick(ask: Ask) -> Design:
    arms = (
        _split(4, probes=("ablation",)), _split(1, probes=("patterns",)), _split(16), _wide(1, 8),
        *_scaling(_ONE, ())[:1], _glorot(), *_scaling(_GLOROT_ONE, _GLOROT), _even(), _start(),
    )  # fmt: skip
    return make_design(
        ask,
        study="heads-and-scale",
        texts={"text": Text()},
        scale=Scale(
            d_model=32, n_layers=2, n_heads=4, n_ctx=32, batch_size=16, steps=300, val_tokens=8_192, evaluations=2
        ),
        grid=Grid(),
        arms=arms,
        contrasts=(
            _several(),
            _cost("16 heads", _BASE, "above 0: heads of width 2 can say little"),
            _cost("1 x 8", _BASE, "above 0"),
            *_undivided(_ONE, ("near 0: scores start small either way", "near 0"))[:1],
            *_undivided(_GLOROT_ONE, ("above 0", "above 0 if a new rate repairs it")),
            *_rows(_ONE),
            *_rows(f"{_GLOROT_ONE}, undivided, untrained", "above 0: the textbook's warning"),
            *_rows(f"{_GLOROT_ONE}, undivided"),
            _pruned(),
        ),
        replicates=5,
    )


def _pruned() -> Contrast:
    return Contrast(
        name="pruned to one head", what="loss of the finished model of 4 heads with only the dearest of each layer"
        " left (chosen on other windows), less its loss", terms=((1.0, _BASE, "pruned"),), margin=MARGIN,
        expected="above 0",
    )  # fmt: skip


def _full(ask: Ask) -> Design:
    def of_recall(n: int) -> Arm:
        sizes = (*LEARNS_RECALL["sizes"], ("n_heads", n))
        more: dict[str, Any] = {**LEARNS_RECALL, "sizes": sizes, "probes": ("answers",)}
        return Arm(name=f"recall, {_count(n)}", what=f"associative recall with {_count(n)}", **more)

    arms = (
        _split(4, probes=("ablation",)), _split(1, probes=("patterns",)), _split(2), _split(8), _split(16),
        *(_wide(n, 16) for n in (1, 2, 8, 16)),
        *_scaling(_ONE, ()), _glorot(), *_scaling(_GLOROT_ONE, _GLOROT), _even(), _start(),
        *(of_recall(n) for n in (1, 4, 16)),
    )  # fmt: skip
    return make_design(
        ask,
        study="heads-and-scale",
        texts={"text": Text(), "recall": RECALLED},
        scale=Scale(d_model=64, n_layers=2, n_heads=4, n_ctx=64, batch_size=16, steps=1000, val_tokens=32_768),
        grid=Grid(),
        arms=arms,
        contrasts=(
            _several(),
            *(_cost(_count(n), _BASE) for n in (2, 8)),
            _cost("16 heads", _BASE, "above 0: heads of width 4 can say little"),
            _cost("1 x 16", _BASE, "above 0"),
            _cost("2 x 16", _BASE, "above 0"),
            _cost("8 x 16", _BASE, "below 0"),
            _cost("16 x 16", _BASE, "below 0"),
            *of_recalling(
                tuple(
                    cost(
                        f"recall, {_count(n)} - recall, {_BASE}", f"associative recall: cost of {_count(n)} against 4",
                        f"recall, {_count(n)}", f"recall, {_BASE}", MARGIN, unit="nats per answer",
                    )
                    for n in (1, 16)
                ),
                f"recall, {_BASE}",
            ),
            *_undivided(_ONE, ("near 0: scores start small either way", "near 0")),
            *_undivided(_GLOROT_ONE, ("above 0", "above 0 if a new rate repairs it")),
            *_rows(_ONE),
            *_rows(f"{_GLOROT_ONE}, undivided, untrained", "above 0: the textbook's warning"),
            *_rows(f"{_GLOROT_ONE}, undivided"),
            _pruned(),
        ),
        replicates=8,
    )  # fmt: skip


def _claim(findings: Findings) -> str:
    verdict, effect = findings.primary.result.verdict, findings.primary.result.effect or 0.0
    difference = "with one head instead of four the loss changes by"
    rest = _of_scale(findings)
    if verdict == "unresolved":
        return f"Whether several heads beat one is not settled by this run{rest}; {difference}"
    if verdict == "equivalent":
        return f"One head as wide as the model does as well as four{rest}: {difference}"
    small = ", by less than would matter" if verdict == "differs but trivially" else ""
    if effect > 0:
        return f"Several heads beat one{small}{rest}: {difference}"
    return f"One head as wide as the model beats four{small}{rest}: {difference}"


def _of_scale(findings: Findings) -> str:
    """What leaving the division out costs where q and k start with unit variance, each at its own rate."""
    result = findings.effect(f"{_GLOROT_ONE}, undivided - {_GLOROT_ONE}").told
    where = "where q and k start with unit variance"
    if result.verdict == "unresolved":
        return f" (what not dividing scores by sqrt(d_head) does {where} is open)"
    if result.verdict == "equivalent":
        return f" (not dividing scores by sqrt(d_head) does no harm {where}, with a rate of its own)"
    little = "a little " if result.verdict == "differs but trivially" else ""
    way = "harm" if (result.effect or 0.0) > 0 else "good"
    return f" (not dividing scores by sqrt(d_head) does {little}{way} {where}, with a rate of its own)"


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
    plain=Plain(
        above="Several heads do better than one, at this size.",
        below="One head as wide as the model does better than several, at this size.",
        slightly="One head as wide as the model does almost exactly as well as several, at this size.",
        equivalent="One head as wide as the model does as well as several, at this size.",
        unresolved="Whether several heads do better than one, this run cannot tell.",
    ),
    also=(
        (
            f"{_GLOROT_ONE}, undivided - {_GLOROT_ONE}",
            Plain(
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
        ),
    ),
    heard=(
        "That scores are divided by sqrt(d_k), or training fails. The argument is about variance one: a product of"
        " d_k such terms has variance d_k. From a small start scores are near 0 with and without it, and a learning"
        " rate of its own makes good for much; the rows below tell the two starts apart."
    ),
    design=_design,
    claim=_claim,
)
