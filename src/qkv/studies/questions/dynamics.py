"""What is learned in which order, and when do heads learn to copy?

Where a block of letters comes again and again, a training has one stage, at which it begins to copy; on text its loss
falls below what the frequencies of tokens give, then below what counting pairs gives, then beyond. The step at which
each is reached is read from the same windows all along. Which matrix has to move *when* is asked by holding it: for the
first third of the steps W_Q and W_K, or W_V and W_O, or W_E, or the MLP, keeps its start and is then released, at the
learning rate that is best where nothing is held, so that nothing but the holding delays a stage. Depth is the control
for copying: one layer cannot find the letter behind an earlier one, two can.
"""

from typing import Any

from qkv.studies.comparison import Comparison
from qkv.studies.design import OF_TRAININGS, Arm, Contrast, Design, Grid, Scale, Text
from qkv.studies.question import Ask, Plain, Question, make_design
from qkv.studies.verdicts import Findings

__all__ = ["QUESTION"]

_HELD = {"QK": "L*.W_[QK]", "VO": "L*.W_[VO]", "W_E": "W_E", "MLP": "L*.W_in,L*.W_out"}
_WORDS = {"QK": "W_Q and W_K", "VO": "W_V and W_O", "W_E": "W_E", "MLP": "W_in and W_out"}
_START = (("start", "xavier"),)
"""Glorot's: a matrix that is held at it does something, and copying is found in fewer steps than from N(0, 0.02)."""
_COPYING: dict[str, Any] = {"text": "repeat", "task": "repeat"}
_LETTERS = Text(stream="repeat", settings=(("letters", 20),))
_FREE = "nothing held"


def _layers(n: int) -> str:
    return f"{n} layer{'s' * (n != 1)}"


def _free(prefix: str = "", layers: int = 2, **more: Any) -> Arm:
    """Everything trained throughout, at its own rate."""
    sizes = (*more.pop("sizes", ()), *((("n_layers", layers),) if layers != 2 else ()))
    return Arm(
        name=prefix + (_FREE if layers == 2 else _layers(layers)),
        what=f"everything trained throughout, {_layers(layers)}", layout=_START, trainer="timed", sizes=sizes, **more,
    )  # fmt: skip


def _held(what: str, until: int, prefix: str = "", **more: Any) -> Arm:
    """Some matrices kept at their start for the first steps, at the rate of the free training."""
    return Arm(
        name=f"{prefix}{what} held", what=f"{_WORDS[what]} held at the start for the first {until} steps",
        changes=(f"{_HELD[what]}=freeze@0..{until}",), layout=_START, trainer="timed", tune=f"{prefix}{_FREE}", **more,
    )  # fmt: skip


def _later(name: str, what: str, arm: str, other: str, stage: str, margin: float, expected: str = "") -> Contrast:
    """Steps by which an arm reaches a stage later than another."""
    terms = (1.0, arm, f"step of {stage}"), (-1.0, other, f"step of {stage}")
    return Contrast(name=name, what=what, terms=terms, margin=margin, unit="steps", expected=expected)


def _delay(what: str, stage: str, margin: float, prefix: str = "") -> Contrast:
    return _later(
        f"{prefix}{what} held: {stage}",
        f"how much later `{stage}` is reached with {_WORDS[what]} held for the first third",
        f"{prefix}{what} held", f"{prefix}{_FREE}", stage, margin, "above 0",
    )  # fmt: skip


def _first(stage: str, margin: float, prefix: str = "") -> Contrast:
    """Which of the two products has to move early."""
    return _later(
        f"{prefix}VO - QK held: {stage}",
        f"how much later `{stage}` is reached with W_V and W_O held, less the same of W_Q and W_K",
        f"{prefix}VO held", f"{prefix}QK held", stage, margin,
        "above 0 if what is handed on is learned before where to look",
    )  # fmt: skip


def _depth(layers: int, stage: str, margin: float, prefix: str = "") -> Contrast:
    arm = f"{prefix}{_layers(layers)}"
    return _later(
        f"{arm}: {stage}", f"how much later `{stage}` is reached than with 2 layers, each at its own rate", arm,
        f"{prefix}{_FREE}", stage, margin,
    )  # fmt: skip


def _between(first: str, second: str, margin: float) -> Contrast:
    arm = f"text, {_FREE}"
    return Contrast(
        name=f"{first} -> {second}", what=f"steps from `{first}` to `{second}`, nothing held",
        terms=((1.0, arm, f"step of {second}"), (-1.0, arm, f"step of {first}")), margin=margin, unit="steps",
        expected="above 0",
    )  # fmt: skip


def _reached(arm: str, stage: str = "copying", expected: str = "1") -> Contrast:
    return Contrast(
        name=f"{arm}: {stage} reached", what="share of trainings that reached it at all",
        terms=((1.0, arm, f"reached {stage}"),), margin=0.05, unit=OF_TRAININGS, expected=expected,
    )  # fmt: skip


def _of_copying(names: tuple[str, ...], margin: float) -> tuple[Contrast, ...]:
    return (
        _first("copying", margin),
        *(_delay(what, "copying", margin) for what in names),
        *(_reached(f"{what} held") for what in names),
        _reached(_FREE),
        _reached("1 layer", expected="0: one layer cannot look behind an earlier letter"),
    )


def _design(ask: Ask) -> Design:
    return _quick(ask) if ask.quick else _full(ask)


def _quick(ask: Ask) -> Design:
    steps, on_text_steps, names = 400, 450, ("QK", "VO", "W_E")
    on_text: dict[str, Any] = {"prefix": "text, ", "sizes": (("batch_size", 16), ("steps", on_text_steps))}
    return make_design(
        ask,
        study="dynamics",
        texts={"repeat": _LETTERS, "text": Text()},
        scale=Scale(
            d_model=32, n_layers=2, n_heads=2, n_ctx=32, batch_size=32, steps=steps, val_tokens=8_192, evaluations=1
        ),
        grid=Grid(),
        arms=(
            _free(**_COPYING),
            *(_held(what, steps // 3, **_COPYING) for what in names),
            _free(layers=1, **_COPYING),
            _free(**on_text),
            *(_held(what, on_text_steps // 3, **on_text) for what in names),
        ),
        contrasts=(
            *_of_copying(names, 20.0),
            _between("unigram", "bigram", 15.0),
            *(_delay(what, "bigram", 15.0, "text, ") for what in names),
            *(_reached(f"text, {who}", "bigram") for who in (_FREE, *(f"{what} held" for what in names))),
        ),
        replicates=5,
    )


def _full(ask: Ask) -> Design:
    steps, late, names, stages = 1000, 50.0, tuple(_HELD), ("bigram", "beyond pairs")
    on_text: dict[str, Any] = {"prefix": "text, "}
    return make_design(
        ask,
        study="dynamics",
        texts={"repeat": _LETTERS, "text": Text()},
        scale=Scale(d_model=64, n_layers=2, n_heads=2, n_ctx=64, batch_size=16, steps=steps, val_tokens=32_768),
        grid=Grid(),
        arms=(
            _free(**_COPYING),
            *(_held(what, steps // 3, **_COPYING) for what in names),
            *(_free(layers=n, **_COPYING) for n in (1, 3)),
            _free(**on_text),
            *(_held(what, steps // 3, **on_text) for what in names),
            *(_free(layers=n, **on_text) for n in (1, 3)),
        ),
        contrasts=(
            *_of_copying(names, late),
            _depth(3, "copying", late),
            _between("unigram", "bigram", late),
            _between("bigram", "beyond pairs", late),
            *(_first(stage, late, "text, ") for stage in stages),
            *(_delay(what, stage, late, "text, ") for what in names for stage in stages),
            *(_depth(n, "beyond pairs", late, "text, ") for n in (1, 3)),
            *(_reached(f"text, {who}", s) for s in stages for who in (_FREE, *(f"{what} held" for what in names))),
        ),
        replicates=8,
    )


def _claim(findings: Findings) -> str:
    verdict, effect = findings.primary.result.verdict, findings.primary.result.effect or 0.0
    rest = _of_reaching(findings)
    difference = "the delay of copying by holding the former, less that by holding the latter, is"
    if verdict == "unresolved":
        return f"Whether W_V and W_O have to move before W_Q and W_K is not settled by this run{rest}; {difference}"
    if verdict == "equivalent":
        return f"Holding W_V and W_O at first delays copying as much as holding W_Q and W_K{rest}: {difference}"
    small = ", by less than would matter" if verdict == "differs but trivially" else ""
    if effect > 0:
        return f"To copy, W_V and W_O are needed earlier than W_Q and W_K{small}{rest}: {difference}"
    difference = "the delay of copying by holding the latter, less that by holding the former, is"
    return f"To copy, W_Q and W_K are needed earlier than W_V and W_O{small}{rest}: {difference}"


def _of_reaching(findings: Findings) -> str:
    """Where a stage was not reached within a training, in brackets; empty where all were."""
    copied = [findings.effect(f"{what} held: copying reached").result for what in ("QK", "VO")]
    steps = findings.design.scale.steps
    if max(result.effect or 0.0 for result in copied) <= 0:
        return f" (no training of the two copied within {steps} steps, so the steps say nothing)"
    words = []
    if missed := sum(map(_missed, copied)):
        tried = sum(result.n for result in copied)
        words.append(f"{missed} of {tried} trainings did not copy within {steps} steps: their end counts")
    pairs = findings.effect(f"text, {_FREE}: bigram reached").result
    if missed := _missed(pairs):
        within = dict(findings.design.arm(f"text, {_FREE}").sizes).get("steps", steps)
        words.append(f"on text {missed} of {pairs.n} did not get to what counting pairs gives within {within} steps")
    return f" ({'; '.join(words)})" if words else ""


def _missed(result: Comparison) -> int:
    """How many trainings of a share did not reach it."""
    return round((1 - (result.effect or 0.0)) * result.n)


QUESTION = Question(
    name="dynamics",
    asks="What is learned in which order, and when do heads learn to copy?",
    answer=(
        "the step at which copying begins, and at which the loss on text passes what counting tokens and pairs gives;"
        " by how much holding a matrix for the first third delays each; one and three layers beside two"
    ),
    falsified_by=(
        "One layer copies; holding W_Q and W_K, or W_V and W_O, delays copying by less than the margin; pairs are"
        " reached before frequencies."
    ),
    literature=(
        "That frequencies come before pairs and pairs before longer contexts, that heads which copy form late and at"
        " once and need two layers, and that output matrices move first, values next and queries and keys last is known"
        " to us from notes on papers that we have not read; none of their figures is printed. No paper was found that"
        " holds single matrices for a window and measures what that delays. How many steps trainings on text have was"
        " chosen after some on the same seeds had been seen to get to pairs near their end."
    ),
    plain=Plain(
        above="To learn to copy, W_V and W_O are needed earlier than W_Q and W_K.",
        below="To learn to copy, W_Q and W_K are needed earlier than W_V and W_O.",
        slightly="To learn to copy, W_Q with W_K and W_V with W_O are needed almost equally early.",
        equivalent="To learn to copy, W_Q with W_K and W_V with W_O are needed equally early.",
        unresolved=(
            "Whether W_V and W_O or W_Q and W_K have to move first for a model to learn to copy, this run cannot tell."
        ),
    ),
    design=_design,
    claim=_claim,
)
