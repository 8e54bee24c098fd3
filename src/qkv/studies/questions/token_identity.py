"""Is a token's identity lost after the first layer? And when the objective is masked tokens?

Layer 0 is what enters the first block, the row of W_E; layer i is what leaves block i. A linear probe and the nearest
row of W_E name the token at a position, on windows that neither model nor probe was fitted on. The probe is asked about
the most frequent tokens alone (`MOST_CLASSES`, and fewer where fewer stand often enough in every part of the windows),
the nearest row about all of them: what the one names, the other need not. A model without skip connections is the
control that loses it; untrained models show what attention mixes before anything is learned. Every token that the
masked task hides shows [MASK], in training too, so none is left in sight by a rule; the probe of hidden positions says
where the model makes the identity anew. At layer 0 it can find nothing there: all show the same row. A masked model is
asked fewer tokens a step, so it gets more steps; positions are rotary and the start is Glorot's but for small rows of
W_E, where it learns in the time of a study.
"""

import dataclasses

from qkv.inspection.discriminant import MOST_CLASSES
from qkv.studies.engine.design import Arm, Contrast, Design, Text
from qkv.studies.question import Ask, Claim, Plain, Question, make_design
from qkv.studies.verdict.judging import Findings
from qkv.studies.vocabulary import (
    ANSWERS,
    AT_START,
    FULL,
    IN_DEMO,
    LEARNS_MASKED,
    MASKED_LAYOUT,
    QUICK,
    arm,
)

__all__ = ["QUESTION"]

MARGIN = 5.0
"""Points of accuracy: what is told of 95 in 100 tokens is not lost."""
MARGIN_NATS = 0.1
_PROBES, _HIDDEN = ("tokens named",), ("tokens named", "hidden tokens named")
_BODY = "rotary positions and Glorot's start with small rows of W_E, as in every arm"
_POINTS, _NATS = "points of accuracy", "nats per token"


def _arms(steps: int) -> tuple[Arm, ...]:
    return (
        arm("causal", f"predicts the next token; {_BODY}", LEARNS_MASKED, probes=_PROBES),
        arm("masked", "predicts hidden tokens, in three times the steps: as many answers", LEARNS_MASKED,
            task="masked", sizes=(("steps", ANSWERS * steps),), probes=_HIDDEN),
        arm("skipless", "predicts the next token without skip connections: the control that loses identity",
            LEARNS_MASKED, layout=(*MASKED_LAYOUT, ("skip", False)), probes=_PROBES),
        arm("untrained", "the causal model at its start", LEARNS_MASKED, AT_START, probes=_PROBES),
        arm("untrained masked", "the masked model at its start", LEARNS_MASKED, AT_START, task="masked",
            probes=_HIDDEN),
    )  # fmt: skip


def _classify(steps: int) -> tuple[dict[str, Text], Arm]:
    """The objective of telling classes apart, where the source has labels."""
    return {"labelled": Text(stream="labelled", tokenizer="word")}, arm(
        "classify", "tells the classes of texts apart", LEARNS_MASKED, text="labelled", task="classify", lr=0.003,
        sizes=(("batch_size", 64), ("steps", steps)), probes=_PROBES,
    )  # fmt: skip


def _within(
    arm: str, name: str, what: str, some: str, other: str, margin: float, unit: str, expected: str = ""
) -> Contrast:
    """What one arm measured in one place, less what it did in another."""
    terms = ((1.0, arm, some), (-1.0, arm, other))
    return Contrast(
        name=f"{name} ({arm})", what=what, terms=terms, margin=margin, unit=unit, expected=expected
    )  # fmt: skip


def _change(arm: str, after: int, before: int = 0, *, hidden: bool = False, expected: str = "") -> Contrast:
    """Nats that a probe reads after one layer, less those after another."""
    where, which = ("hidden information", "hidden ") if hidden else ("information", "")
    what = f"nats that a probe reads of the {which}token at layer {after}, less those at layer {before}"
    some, other = f"{where} {after}", f"{where} {before}"
    return _within(arm, f"{where} {after} - {before}", what, some, other, MARGIN_NATS, _NATS, expected)


def _named(arm: str, after: int, expected: str = "") -> Contrast:
    what = f"frequent tokens that a probe names at layer {after}, less those that it names without looking"
    some, other = f"identity {after}", f"chance {after}"
    return _within(arm, f"named at layer {after}", what, some, other, MARGIN, _POINTS, expected)


def _fall(arm: str, after: int, expected: str, quantity: str = "identity") -> Contrast:
    how = "frequent tokens that a probe" if quantity == "identity" else "tokens that the nearest row of W_E"
    what = f"{how} names at layer {after}, less those at layer 0"
    some, other = f"{quantity} {after}", f"{quantity} 0"
    return _within(arm, f"{quantity} {after} - 0", what, some, other, MARGIN, _POINTS, expected)


def _beside(arm: str, other: str, layer: int, expected: str = "") -> Contrast:
    """What one arm keeps beside another, each from its own layer 0."""
    terms = tuple(
        (sign * way, name, f"information {at}")
        for sign, name in ((1.0, arm), (-1.0, other))
        for way, at in ((1.0, layer), (-1.0, 0))
    )
    return Contrast(
        name=f"information {layer} - 0: {arm} - {other}",
        what=f"change of what a probe reads from layer 0 to layer {layer}: {arm} less {other}",
        terms=terms,
        margin=MARGIN_NATS,
        unit=_NATS,
        expected=expected,
    )


def _contrasts(last: int, labelled: bool) -> tuple[Contrast, ...]:
    layers = range(1, last + 1)
    classify = [_change("classify", i) for i in layers] if labelled else []
    return (
        _fall("causal", 1, "within 5 points, thanks to skip connections"),
        _named("causal", 1, "far above 0"),
        _named("causal", last),
        _fall("masked", 1, "within 5 points"),
        _named("masked", 1, "far above 0"),
        *(_change("causal", i, expected="falls with depth" if i == last else "") for i in layers),
        *(_change("masked", i) for i in layers),
        _change("masked", last, last - 1, expected="above 0 where it is made anew at the top"),
        _beside("masked", "causal", last, "above 0"),
        _beside("causal", "untrained", last, "above 0: small rows drown in what untrained blocks write"),
        _beside("masked", "untrained masked", last),
        *(_change("masked", i, hidden=True, expected="above 0" if i == last else "") for i in layers),
        _change("untrained masked", last, hidden=True, expected="0: nothing was learned"),
        _fall("skipless", last, "far below 0, else the measure is blind"),
        *(_fall(arm, i, "", "nearest") for arm in ("causal", "masked") for i in layers),
        *(_fall("untrained", i, "", "nearest") for i in dict.fromkeys((1, last))),
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


def _other_readers(findings: Findings) -> str:
    return f" ({_beyond_chance(findings)}{_by_nearest(findings)}{_of_masked(findings)})"


def _beyond_chance(findings: Findings) -> str:
    """How many tokens are still named there; empty where that is not settled."""
    named = findings.effect("named at layer 1 (causal)").told
    if named.effect is None or named.verdict != "differs" or named.effect < 0:
        return ""
    return f"there it names {named.effect:.3g} in 100 more than it does without looking; "


def _by_nearest(findings: Findings) -> str:
    """How many fewer of all tokens the nearest row of W_E names there; empty where that is not settled."""
    fewer = -(findings.there("nearest 1 - 0 (causal)") or 0.0)
    return f"the nearest row of W_E names {fewer:.3g} in 100 fewer there; " if fewer > 0 else ""


def _of_masked(findings: Findings) -> str:
    """What the first layer of a masked model does."""
    result = findings.effect("identity 1 - 0 (masked)").told
    if result.effect is None or result.verdict == "unresolved":
        return "of a masked one that is open"
    if result.verdict == "equivalent":
        return "of a masked one it names as many after the first layer as before"
    way = "more" if result.effect > 0 else "fewer"
    return f"of a masked one it names {abs(result.effect):.3g} in 100 {way} after the first layer than before"


_ALSO = {
    "nearest 1 - 0 (causal)": Plain(
        above="The nearest row of the table of embeddings names more tokens there than before it.",
        below=(
            "But from small rows of the table of embeddings, as in this recipe, what stands there is near to other"
            " rows: the nearest of them names {effect} tokens of 100 fewer than before that layer."
        ),
        slightly="The nearest row of the table of embeddings names almost exactly as many there as before it.",
        equivalent="The nearest row of the table of embeddings names as many tokens there as before it.",
        unresolved="Whether the nearest row of the table of embeddings names fewer there, this run cannot tell.",
    ),
    "identity 1 - 0 (masked)": Plain(
        above="Of a model of hidden tokens that reader names more after the first layer than before it.",
        below="Of a model of hidden tokens that reader names {effect} of a hundred fewer after the first layer.",
        slightly="Of a model of hidden tokens it names almost exactly as many after the first layer as before it.",
        equivalent="Of a model of hidden tokens that reader names as many after the first layer as before it.",
        unresolved="Whether a model of hidden tokens loses any in its first layer, this run cannot tell.",
    ),
    "information 4 - 0 (classify)": Plain(
        above="Of a model that tells classes of texts apart a reader knows {effect} nats more of it at the top.",
        below="Of a model that tells classes of texts apart a reader knows {effect} nats less of it at the top.",
        slightly="Of a model that tells classes of texts apart a reader knows almost exactly as much at the top.",
        equivalent="Of a model that tells classes of texts apart a reader knows as much of it at the top.",
        unresolved="Whether a model that tells classes of texts apart loses any of it, this run cannot tell.",
    ),
}


QUESTION = Question(
    name="token-identity",
    asks="Is a token's identity lost after the first layer? And when the objective is masked tokens?",
    answer=(
        f"tokens named by a linear probe, which is asked about the most frequent, {MOST_CLASSES} at most, and of all"
        " tokens by the nearest row of W_E, and information in nats, by layer and objective,"
        " against chance, untrained models and a model without skip connections; at hidden positions too"
    ),
    falsified_by=(
        f"After the first layer a probe names {MARGIN:g} points fewer tokens than before it; without skip connections"
        " it names as many at the top as at the bottom (then the measure is blind)."
    ),
    literature=(
        "Models trained to predict the next token lose information about the input token from layer to layer; masked"
        " ones lose it and then make token identity anew at the top (Voita et al. 2019, arXiv 1909.01380, abstract)."
        " From the vectors of any layer the exact input could be found again, at the start and after training (Nikolaou"
        " et al. 2025, arXiv 2510.15511, abstract): what a linear probe does not read is not lost for every reader."
    ),
    plain=Plain(
        above=(
            "Not lost: after the first layer of a causal model a simple reader names a frequent token more often than"
            " before it."
        ),
        below=(
            "Partly: after the first layer of a causal model a simple reader names a frequent token less often than"
            " before it."
        ),
        slightly=(
            "Hardly anything of it is lost: after the first layer of a causal model a simple reader names a frequent"
            " token almost exactly as often as before it."
        ),
        equivalent=(
            "Not lost: after the first layer of a causal model a simple reader names a frequent token as often as"
            " before it."
        ),
        unresolved=(
            "Whether a simple reader names a frequent token less often after the first layer, this run cannot tell."
        ),
    ),
    also=_ALSO,
    heard=(
        "That after one layer of attention a vector is a mixture of all others and the word itself is gone. That"
        " leaves out the skip connection, which carries a token's own vector past the attention, to be added to what"
        " comes out of it."
    ),
    elsewhere=(
        f"{IN_DEMO}: there the nearest row of the table of embeddings names 100.0 tokens of 100 after layer 1, as"
        " before it. In the kept full run on tinyshakespeare it names 99.5 of 100 fewer in the untrained model too, so"
        " training is not the cause."
    ),
    design=_design,
    claim=Claim(
        unresolved=(
            "Whether a frequent token's identity is lost after the first layer of a causal model is not settled by this"
            " run{beside}; {ends} from layer 0 to layer 1 by"
        ),
        equivalent=(
            "A frequent token's identity is not lost after the first layer of a causal model{beside}: {ends} from layer"
            " 0 to layer 1 by"
        ),
        above=(
            "After the first layer of a causal model a frequent token is easier to name than before it{small}{beside}:"
            " {ends} by"
        ),
        below=(
            "Some of a frequent token's identity is harder to name after the first layer of a causal model{small}"
            "{beside}: {ends} by"
        ),
        ends="the tokens that a linear probe names change",
        small=", less than would matter",
        beside=_other_readers,
    ),
)
