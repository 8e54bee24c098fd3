"""Do words that occur together get similar vectors by self-attention alone? And does `the` end up apart from all
others?

Generated sentences hold pairs of words in a 2 x 2 design, {occur together} x {share contexts}, equally often, so that
the two are separated by design and not by regression. Similarity is measured on the rows of W_E and W_U, on both
together, on the circuits QK and OV and on contextual vectors. Controls: the untrained model, W = I, and a contrastive
objective that makes neighbors alike on purpose.

On the user's own text the 2 x 2 consists of selected pairs (`studies.probes.collocations`): together by PPMI, shared by
second-order similarity, matched in frequency, with the same controls. How well they match is reported. This compares
pairs as a text has them and is no intervention. It is a property of this parametrization, also for e.u, QK and OV,
which leave out the gains of norms. It is left out where the model learned no more than answer frequencies or the text
has too few such pairs. The dot products of the most frequent word with all others are measured too. --quick measures
less of both.
"""

import dataclasses

from qkv.studies.engine.design import Arm, Contrast, Design, Text
from qkv.studies.expectation import Expected
from qkv.studies.probes.collocations import FEWEST_FOURS, chosen
from qkv.studies.probes.pairs import commonest_word
from qkv.studies.question import Ask, make_design, quick_or_full, read_question
from qkv.studies.vocabulary import ABOVE, AT_START, BELOW, FULL, QUICK, Settings, arm, learned, level, near

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
_NEAR_0 = near(0.0, 0.1)


def _effect(arm: str, factor: str, measure: str, expected: Expected | None = None) -> Contrast:
    words = {"together": "occurring together", "shared": "sharing contexts"}[factor]
    unit = _UNITS[measure]
    return level(
        f"{factor} -> {measure} ({arm})", f"what {words} does to {measure} of two words", arm, f"{factor} {measure}",
        _MARGINS[unit], unit=unit, expected=expected,
    )  # fmt: skip


def _both(arm: str, measures: tuple[str, ...], **expected: Expected) -> tuple[Contrast, ...]:
    return tuple(
        _effect(arm, factor, measure, expected.get(factor)) for measure in measures for factor in ("together", "shared")
    )


_MADE: Settings = {"text": "pairs", "probes": ("pairs",)}
_BY_PAIRS: Settings = {"trainer": "contrastive", "tune": "none", "lr": 0.02}
_ARMS = (
    arm("causal", "predicts the next word; everything trained", _MADE),
    arm("untrained", "the same model at its start", _MADE, AT_START),
    arm("contrastive", "neighbors trained to be alike: the positive control", _MADE, _BY_PAIRS),
)
_FULL_ARMS = (
    *_ARMS,
    arm("masked", "predicts masked words", _MADE, task="masked"),
    arm("identity", "W_Q = W_K = W_V = W_O = I, embeddings trained", _MADE, changes=("L*.W_[QKVO]=identity",)),
    arm("tied", "W_U tied to W_E", _MADE, layout=(("tied", True),)),
    arm("sgd", "trained by SGD", _MADE, optimizer="sgd", lr=0.5),
    arm("null", "random labels, drawn uniformly at every step", _MADE, labels="uniform", tune="causal"),
)
_PRIMARY = _effect("causal", "together", "cos(e, e)", _NEAR_0)


def _pairs(pairs: int, tokens: int, val_tokens: int) -> Text:
    settings = (("pairs", pairs), ("fillers", 40), ("choices", 6), ("tokens", tokens), ("val_tokens", val_tokens))
    return Text(stream="pairs", settings=settings)


_OWN = arm(
    "own text", "predicts the next word of the given text", text="text",
    probes=("commonest word", "collocations", "learned"),
)  # fmt: skip
_NEEDS = learned(_OWN.name)
_OWN_CONTROLS = (
    arm("own text untrained", "the same model at its start", AT_START, probes=("collocations",)),
    arm("own text contrastive", "neighbors in the text made alike on purpose", _BY_PAIRS, probes=("collocations",)),
)
_WORD = "the commonest word"
_OF_A_FOUR = {"log count": "ln counts, added", "PPMI": "nats", "second order": "cosine"}
"""What was known of a pair -> its unit."""


def _of_text(arm: str, measures: tuple[str, ...], *, gated: bool = False, **expected: Expected) -> tuple[Contrast, ...]:
    """Both effects of the pairs of the text that was given."""
    which = {
        "together": "pairs of the text that occur together, minus equally frequent pairs that do not",
        "shared": "pairs of the text that share contexts, minus equally frequent pairs that do not",
    }
    return tuple(
        dataclasses.replace(
            _effect(arm, factor, measure, expected.get(factor)), what=f"{measure} of {which[factor]}",
            needs=_NEEDS.name if gated else "",
        )
        for measure in measures
        for factor in which
    )  # fmt: skip


def _fours() -> tuple[Contrast, ...]:
    """How many pairs there are, and what else their choice makes differ."""
    wanted = (("together", "PPMI"), ("shared", "second order"))
    return (
        level(
            "fours of pairs", "number of matched sets of four pairs of the text, one of each kind and equally frequent",
            _OWN.name, "fours", 0.5, unit="fours", constant=True,
        ),
        *(
            level(
                f"{factor} -> {known}", f"difference in {known} due to the choice of pairs alone", _OWN.name,
                f"{factor} {known}", 0.1, unit=unit, constant=True,
                expected=None if (factor, known) in wanted else _NEAR_0,
            )
            for known, unit in _OF_A_FOUR.items()
            for factor in ("together", "shared")
        ),
    )  # fmt: skip


def _own_text(ask: Ask, text: Text, measures: tuple[str, ...]) -> tuple[tuple[Arm, ...], tuple[Contrast, ...]]:
    """Arms and contrasts on the user's own text; pairs only where it has enough of them."""
    if not ask.named and len(chosen(ask.corpus(text))) < FEWEST_FOURS:
        return (_OWN,), (*_common(), _fours()[0], _NEEDS)
    first = ("cos(e, e)",)
    return (_OWN, *_OWN_CONTROLS), (
        *_common(),
        *_of_text("own text", first, gated=True, together=_NEAR_0, shared=ABOVE),
        *_of_text("own text", measures, gated=True),
        *_of_text("own text contrastive", first, together=ABOVE),
        *_of_text("own text untrained", first, together=_NEAR_0, shared=_NEAR_0),
        *_fours(),
        _NEEDS,
    )


def _quick(ask: Ask) -> Design:
    text = Text(tokenizer="word", vocab=1000)
    own, asked = _own_text(ask, text, ("e.u",))
    return make_design(
        ask,
        study="collocation",
        texts={"pairs": _pairs(8, 100_000, 8_192), "text": text},
        scale=dataclasses.replace(QUICK, evaluations=4),
        arms=(*_ARMS, *own),
        contrasts=(
            _PRIMARY,
            _effect("causal", "shared", "cos(e, e)", ABOVE),
            *_both("causal", ("e.u",), together=ABOVE),
            *_both("contrastive", ("cos(e, e)",), together=ABOVE),
            *_both("untrained", ("cos(e, e)",), together=_NEAR_0, shared=_NEAR_0),
            *asked,
        ),
    )


def _common() -> tuple[Contrast, ...]:
    mean = "mean dot product of the row of W_E of the commonest word with"

    def of(name: str, what: str, quantity: str, expected: Expected | None = None) -> Contrast:
        unit = "root-mean-square dot products"
        return level(name, what, _OWN.name, quantity, 0.2, unit=unit, expected=expected, needs=_NEEDS.name)

    def by_count(name: str, what: str, quantity: str) -> Contrast:
        return level(name, what, _OWN.name, quantity, 0.1, unit="rank correlation", needs=_NEEDS.name)

    return (
        of(f"{_WORD} with all", f"{mean} all other tokens", "dot of the word", BELOW),
        of(f"{_WORD} with all, less others", f"{mean} all others, minus the same for every other token",
           "dot of the word over others", BELOW),
        of(f"{_WORD} with common tokens", f"{mean} the most frequent tenth of tokens",
           "dot of the word with common"),
        of(f"{_WORD} with rare tokens", f"{mean} the rarer half of tokens", "dot of the word with rare"),
        by_count(f"{_WORD} by frequency", "rank correlation of that dot product with the frequency of the other token",
                 "dot of the word by count"),
        by_count("dot products by frequency", "rank correlation over tokens of the mean dot product with the count",
                 "dot by count"),
    )  # fmt: skip


def _counted(ask: Ask, design: Design) -> str:
    """Which word the commonest is, and that the commonest token may be no word."""
    corpus = ask.corpus(dict(design.texts)["text"], design.scale.val_tokens)
    word, counts = commonest_word(corpus)
    first, said = int(counts.argmax()), f"{counts[word]:,} of {counts.sum():,} tokens of the training part"
    name = corpus.tokenizer.token(word).strip()
    apart = "" if first == word else f"; the commonest token, {corpus.tokenizer.token(first)!r}, is none of letters"
    if not name.isalpha():
        return f"No token is of letters, so the commonest stands for the commonest word: {name!r}, {said}"
    return f"The commonest word of letters is {name!r}, {said}{apart}"


def _full(ask: Ask) -> Design:
    text = Text(tokenizer="word", vocab=2000)
    own, asked = _own_text(ask, text, ("cos(u, u)", "e.u", "QK", "OV"))
    return make_design(
        ask,
        study="collocation",
        texts={"pairs": _pairs(16, 400_000, 16_384), "text": text},
        scale=dataclasses.replace(FULL, val_tokens=16_384),
        arms=(*_FULL_ARMS, *own),
        contrasts=(
            _PRIMARY,
            _effect("causal", "shared", "cos(e, e)", ABOVE),
            *_both("causal", tuple(_UNITS)[1:]),
            *_both("contrastive", ("cos(e, e)",), together=ABOVE),
            *_both("untrained", ("cos(e, e)", "contextual cos"), together=_NEAR_0),
            *(c for arm in ("masked", "identity", "tied", "sgd", "null") for c in _both(arm, ("cos(e, e)",))),
            *_both("identity", ("contextual cos",)),
            *asked,
        ),
    )


QUESTION = read_question("collocation", design=quick_or_full(_quick, _full), counted=_counted)
