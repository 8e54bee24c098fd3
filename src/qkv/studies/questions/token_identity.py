"""Is a token's identity lost after the first layer? And when the objective is masked tokens?

Layer 0 is the input of the first block, the row of W_E; layer i is the output of block i. A linear probe and the
nearest row of W_E identify the token at a position, on windows that neither model nor probe was fitted on. The probe is
asked about the most frequent tokens only (`MOST_CLASSES`, and fewer where fewer occur often enough in every part of the
windows), the nearest row about all; what one identifies, the other need not. A model without skip connections is the
control that loses identity; untrained models show what attention mixes before anything is learned. Every token that the
masked task hides shows [MASK], in training too, so none stays visible. The probe of hidden positions shows where the
model reconstructs the identity; at layer 0 it can find nothing, since all show the same row. A masked model predicts
fewer tokens a step, so it gets more steps. Positions are rotary and initialization is Glorot with small rows of W_E,
where it learns within a study's time.
"""

import dataclasses

from qkv.studies.engine.design import Arm, Contrast, Design, Text
from qkv.studies.expectation import Expected
from qkv.studies.question import Ask, make_design, read_question
from qkv.studies.vocabulary import (
    ABOVE,
    ANSWERS,
    AT_START,
    BELOW,
    FULL,
    LEARNS_MASKED,
    MASKED_LAYOUT,
    QUICK,
    arm,
    near,
)

MARGIN = 5.0
"""Points of accuracy: what is told of 95 in 100 tokens is not lost."""
MARGIN_NATS = 0.1
_PROBES, _HIDDEN = ("tokens named",), ("tokens named", "hidden tokens named")
_BODY = "rotary positions and Glorot initialization with small rows of W_E, as in every arm"
_POINTS, _NATS = "points of accuracy", "nats per token"


def _arms(steps: int) -> tuple[Arm, ...]:
    return (
        arm("causal", f"predicts the next token; {_BODY}", LEARNS_MASKED, probes=_PROBES),
        arm("masked", "predicts hidden tokens, in three times the steps (equal number of predictions)", LEARNS_MASKED,
            task="masked", sizes=(("steps", ANSWERS * steps),), probes=_HIDDEN),
        arm("skipless", "predicts the next token without skip connections: the control that loses identity",
            LEARNS_MASKED, layout=(*MASKED_LAYOUT, ("skip", False)), probes=_PROBES),
        arm("untrained", "the causal model, untrained", LEARNS_MASKED, AT_START, probes=_PROBES),
        arm("untrained masked", "the masked model, untrained", LEARNS_MASKED, AT_START, task="masked",
            probes=_HIDDEN),
    )  # fmt: skip


def _classify(steps: int) -> tuple[dict[str, Text], Arm]:
    """The objective of telling classes apart, where the source has labels."""
    return {"labelled": Text(stream="labelled", tokenizer="word")}, arm(
        "classify", "classifies texts", LEARNS_MASKED, text="labelled", task="classify", lr=0.003,
        sizes=(("batch_size", 64), ("steps", steps)), probes=_PROBES,
    )  # fmt: skip


def _within(
    arm: str, name: str, what: str, some: str, other: str, margin: float, unit: str, expected: Expected | None = None
) -> Contrast:
    """What one arm measured in one place, less what it did in another."""
    terms = ((1.0, arm, some), (-1.0, arm, other))
    return Contrast(
        name=f"{name} ({arm})", what=what, terms=terms, margin=margin, unit=unit, expected=expected
    )  # fmt: skip


def _change(
    arm: str, after: int, before: int = 0, *, hidden: bool = False, expected: Expected | None = None
) -> Contrast:
    """Nats that a probe reads after one layer, less those after another."""
    where, which = ("hidden information", "hidden ") if hidden else ("information", "")
    what = f"nats that a probe reads of the {which}token at layer {after}, minus those at layer {before}"
    some, other = f"{where} {after}", f"{where} {before}"
    return _within(arm, f"{where} {after} - {before}", what, some, other, MARGIN_NATS, _NATS, expected)


def _named(arm: str, after: int, expected: Expected | None = None) -> Contrast:
    what = f"frequent tokens that a probe names at layer {after}, minus those it names without looking"
    some, other = f"identity {after}", f"chance {after}"
    return _within(arm, f"named at layer {after}", what, some, other, MARGIN, _POINTS, expected)


def _fall(arm: str, after: int, expected: Expected | None, quantity: str = "identity") -> Contrast:
    how = "frequent tokens that a probe" if quantity == "identity" else "tokens that the nearest row of W_E"
    what = f"{how} names at layer {after}, minus those at layer 0"
    some, other = f"{quantity} {after}", f"{quantity} 0"
    return _within(arm, f"{quantity} {after} - 0", what, some, other, MARGIN, _POINTS, expected)


def _beside(arm: str, other: str, layer: int, expected: Expected | None = None) -> Contrast:
    """What one arm keeps beside another, each from its own layer 0."""
    terms = tuple(
        (sign * way, name, f"information {at}")
        for sign, name in ((1.0, arm), (-1.0, other))
        for way, at in ((1.0, layer), (-1.0, 0))
    )
    return Contrast(
        name=f"information {layer} - 0: {arm} - {other}",
        what=f"change of what a probe reads from layer 0 to layer {layer}: {arm} minus {other}",
        terms=terms,
        margin=MARGIN_NATS,
        unit=_NATS,
        expected=expected,
    )


def _contrasts(last: int, labelled: bool) -> tuple[Contrast, ...]:
    layers = range(1, last + 1)
    classify = [_change("classify", i) for i in layers] if labelled else []
    return (
        _fall("causal", 1, near(0.0, MARGIN)),
        _named("causal", 1, ABOVE),
        _named("causal", last),
        _fall("masked", 1, near(0.0, MARGIN)),
        _named("masked", 1, ABOVE),
        *(_change("causal", i, expected=BELOW if i == last else None) for i in layers),
        *(_change("masked", i) for i in layers),
        _change("masked", last, last - 1, expected=ABOVE),
        _beside("masked", "causal", last, ABOVE),
        _beside("causal", "untrained", last, ABOVE),
        _beside("masked", "untrained masked", last),
        *(_change("masked", i, hidden=True, expected=ABOVE if i == last else None) for i in layers),
        _change("untrained masked", last, hidden=True, expected=near(0.0, MARGIN_NATS)),
        _fall("skipless", last, BELOW),
        *(_fall(arm, i, None, "nearest") for arm in ("causal", "masked") for i in layers),
        *(_fall("untrained", i, None, "nearest") for i in dict.fromkeys((1, last))),
        *classify,
    )


def _design(ask: Ask) -> Design:
    labelled = ask.has_labels()
    scale = QUICK if ask.quick else dataclasses.replace(FULL, n_layers=4, steps=700)
    texts, arms = {"text": Text(tokenizer="bpe", vocab=512)}, _arms(scale.steps)
    if labelled:
        more, classify = _classify(200 if ask.quick else 600)
        texts, arms = texts | more, (*arms[:2], classify, *arms[2:])
    return make_design(
        ask,
        study="token-identity",
        texts=texts,
        scale=scale,
        arms=arms,
        contrasts=_contrasts(scale.n_layers, labelled),
    )


QUESTION = read_question("token-identity", design=_design)
