"""Do words that occur together get similar vectors by self-attention alone? And does `the` end up apart from all
others?

Made sentences hold pairs of words in a 2 x 2, {occur together} x {share contexts}, equally often, so that the two are
told apart by design and not by regression. Likeness is measured on the rows of W_E and W_U, on both together, on the
circuits QK and OV and on contextual vectors. Controls: the untrained model, W = I, and a contrastive objective that
makes neighbours alike on purpose. On the user's own text: the dot products of the commonest word by frequency.
"""

from qkv.studies.design import Arm, Contrast, Design, Grid, Scale, Text
from qkv.studies.question import Ask, Plain, Question, make_design
from qkv.studies.sentences import amount
from qkv.studies.verdicts import Findings

__all__ = ["QUESTION"]

MARGIN = 0.1
"""Of a cosine; two vectors of a hundred coordinates drawn at random differ by as much from a right angle."""
_UNITS = {
    "cos(e, e)": "cosine",
    "cos(u, u)": "cosine",
    "contextual cos": "cosine",
    "e.u": "spreads",
    "QK": "spreads",
    "OV": "spreads",
}
_MARGINS = {"cosine": MARGIN, "spreads": 0.2}


def _effect(arm: str, factor: str, measure: str, expected: str = "") -> Contrast:
    words = {"together": "occurring together", "shared": "sharing contexts"}[factor]
    unit = _UNITS[measure]
    return Contrast(
        name=f"{factor} -> {measure} ({arm})",
        what=f"what {words} does to {measure} of two words",
        terms=((1.0, arm, f"{factor} {measure}"),),
        margin=_MARGINS[unit],
        unit=unit,
        expected=expected,
    )


def _both(arm: str, measures: tuple[str, ...], **expected: str) -> tuple[Contrast, ...]:
    return tuple(
        _effect(arm, factor, measure, expected.get(factor, ""))
        for measure in measures
        for factor in ("together", "shared")
    )


_CAUSAL = Arm(name="causal", what="predicts the next word; everything trained", text="pairs", probes=("pairs",))
_UNTRAINED = Arm(
    name="untrained", what="the same model at its start", text="pairs", trainer="none", tune="none", probes=("pairs",)
)  # fmt: skip
_CONTRASTIVE = Arm(
    name="contrastive", what="neighbours made alike on purpose: the positive control", text="pairs",
    trainer="contrastive", tune="none", lr=0.02, probes=("pairs",),
)  # fmt: skip
_PRIMARY = _effect("causal", "together", "cos(e, e)", "near 0: likeness follows shared contexts")


def _pairs(pairs: int, tokens: int, val_tokens: int) -> Text:
    settings = (("pairs", pairs), ("fillers", 40), ("choices", 6), ("tokens", tokens), ("val_tokens", val_tokens))
    return Text(stream="pairs", settings=settings)


def _design(ask: Ask) -> Design:
    return _quick(ask) if ask.quick else _full(ask)


def _quick(ask: Ask) -> Design:
    common = Arm(
        name="own text", what="predicts the next word of the text that was given", text="text", probes=("common word",)
    )  # fmt: skip
    return make_design(
        ask,
        study="collocation",
        texts={"pairs": _pairs(8, 100_000, 8_192), "text": Text(tokenizer="word", vocab=1000)},
        scale=Scale(d_model=32, n_layers=2, n_heads=2, n_ctx=32, batch_size=16, steps=300, val_tokens=8_192),
        grid=Grid(ratio=3.0, points=3),
        arms=(_CAUSAL, _UNTRAINED, _CONTRASTIVE, common),
        contrasts=(
            _PRIMARY,
            _effect("causal", "shared", "cos(e, e)", "above 0"),
            *_both("causal", ("e.u",), together="above 0: the bigram lives here"),
            *_both("contrastive", ("cos(e, e)",), together="above 0, else the measure is blind"),
            *_both("untrained", ("cos(e, e)",), together="0", shared="0"),
            *_common(),
        ),
        replicates=6,
    )


def _common() -> tuple[Contrast, ...]:
    return (
        Contrast(
            name="dot products of the commonest word",
            what=(
                "mean dot product of the commonest token's row of W_E with all others, in root-mean-square dot products"
            ),
            terms=((1.0, "own text", "dot of the commonest"),),
            margin=0.2,
            unit="root-mean-square dot products",
            expected="low, says a well-known tutorial",
        ),
        Contrast(
            name="dot products by frequency",
            what="rank correlation over tokens of the mean dot product with the count",
            terms=((1.0, "own text", "dot by count"),),
            margin=0.1,
            unit="rank correlation",
        ),
    )


def _full(ask: Ask) -> Design:
    measures = tuple(_UNITS)
    masked = Arm(name="masked", what="predicts masked words", text="pairs", task="masked", probes=("pairs",))
    plain = Arm(
        name="identity", what="W_Q = W_K = W_V = W_O = I, embeddings trained", text="pairs",
        changes=("L*.W_[QKVO]=identity",), probes=("pairs",),
    )  # fmt: skip
    tied = Arm(name="tied", what="W_U tied to W_E", text="pairs", layout=(("tied", True),), probes=("pairs",))
    sgd = Arm(name="sgd", what="trained by SGD", text="pairs", optimizer="sgd", lr=0.5, probes=("pairs",))
    null = Arm(
        name="null", what="labels that no one can tell", text="pairs", labels="random", tune="causal", probes=("pairs",)
    )  # fmt: skip
    common = Arm(name="own text", what="predicts the next word of the text", text="text", probes=("common word",))
    return make_design(
        ask,
        study="collocation",
        texts={"pairs": _pairs(16, 400_000, 16_384), "text": Text(tokenizer="word", vocab=2000)},
        scale=Scale(d_model=64, n_layers=2, n_heads=2, n_ctx=64, batch_size=16, steps=1000, val_tokens=16_384),
        grid=Grid(ratio=3.0, points=3),
        arms=(_CAUSAL, _UNTRAINED, _CONTRASTIVE, masked, plain, tied, sgd, null, common),
        contrasts=(
            _PRIMARY,
            _effect("causal", "shared", "cos(e, e)", "above 0"),
            *_both("causal", measures[1:]),
            *_both("contrastive", ("cos(e, e)",), together="above 0, else the measure is blind"),
            *_both("untrained", ("cos(e, e)", "contextual cos"), together="0 for rows"),
            *(c for arm in ("masked", "identity", "tied", "sgd", "null") for c in _both(arm, ("cos(e, e)",))),
            *_both("identity", ("contextual cos",)),
            *_common(),
        ),
        replicates=8,
    )


def _claim(findings: Findings) -> str:
    verdict, effect = findings.primary.result.verdict, findings.primary.result.effect or 0.0
    shared = findings.effect("shared -> cos(e, e) (causal)").told
    other = f" (sharing contexts alone does {amount(shared.effect)})" if shared.verdict == "differs" else ""
    if verdict == "unresolved":
        return (
            "Whether words that occur together get similar rows of W_E is not settled by this"
            f" run{other}; occurring together alone changes their cosine by"
        )
    if verdict == "equivalent":
        return (
            f"Words that occur together do not become alike in W_E by that alone{other}: occurring"
            " together changes their cosine by"
        )
    small = ", though by less than would matter" if verdict == "differs but trivially" else ""
    way = "more alike" if effect > 0 else "less alike"
    return f"Occurring together makes two words {way} in W_E{small}{other}: it changes their cosine by"


QUESTION = Question(
    name="collocation",
    asks="Do words that occur together get similar vectors by self-attention alone?",
    answer=(
        "effects of occurring together and of sharing contexts, told apart, on rows, circuits and contextual vectors"
    ),
    falsified_by=(
        "Occurring together raises cos(e_i, e_j) by half as much as sharing contexts does, or more;"
        " the contrastive control shows no"
        " effect of occurring together (then the measure is blind)."
    ),
    literature=(
        "For early training under gradient descent theory gives the embeddings in closed form: likeness of rows follows"
        " which words may stand for each other, and what follows what lives in maps between rows (Im et al. 2026, arXiv"
        " 2601.19208, abstract). Skip-gram factorises shifted mutual information of words and"
        " contexts (Levy and Goldberg"
        " 2014)."
    ),
    plain=Plain(
        above=(
            "Yes, to a part: standing next to each other makes the input vectors of two words more alike, whatever"
            " else they stand next to."
        ),
        below="No: standing next to each other makes the input vectors of two words less alike.",
        slightly=(
            "Hardly: standing next to each other changes how alike the input vectors of two words are by very little."
        ),
        equivalent=(
            "Not by that alone: standing next to each other leaves the input vectors of two words as alike or unlike"
            " as they were."
        ),
        unresolved=(
            "Whether standing next to each other makes the input vectors of two words alike, this run cannot tell."
        ),
    ),
    heard=(
        "That words which occur together end up with similar vectors. Two things are mixed up in this: to stand next"
        " to each other (*New* and *York*), and to stand in the same places (*cat* and *dog*). In real text they come"
        " together; in made sentences, as here, each can be had without the other."
    ),
    design=_design,
    claim=_claim,
)
