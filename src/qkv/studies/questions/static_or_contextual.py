"""How do contextual vectors differ from the rows of W_E, and do analogies mean anything for each?

Occurrences of a word are compared layer by layer: how alike they are to one another and to the rest of their window,
each beyond what meaningless vectors of that layer give; and whether the mean of a word's occurrences, or their first
principal component, has the neighbors that its row of W_E has. W_E is also compared with rows of positive mutual
information with neighbors in the text (PPMI), which is what skip-gram factorizes. With TEXT:VECTORS, published word
vectors (GloVe, word2vec), which know other texts, show what can be answered at all.

A masked model learns within a study's time from Glorot initialization with rotary positions, so there its layer 0 is
the bare row of W_E, and what mixing does untrained depends on that initialization. Nothing is said about an arm that
learned no more than word frequencies.

Analogies use the most frequent words of English where the text holds enough of them, otherwise none is scored; so do
triplets (is king nearer to queen than to dog?) in x, q, k and v. And a warning that needs no statistics: W_Q and W_K
can be replaced by another pair with the same scores and other cosines among queries, so similarity among queries or
keys is no property of what the model does.
"""

import dataclasses
from pathlib import Path

import numpy as np

from qkv.data.vectors import read_vectors
from qkv.folder.run_folder import sha256_of
from qkv.studies.engine.design import Arm, Contrast, Design, Text
from qkv.studies.expectation import Expected
from qkv.studies.probes.analogies import FEWEST_ASKED, FEWEST_WORDS, N_QUESTIONS, grouped, n_askable
from qkv.studies.probes.contextual import MOST_TOKENS
from qkv.studies.question import Ask, make_design, read_question
from qkv.studies.synthetic.streams import given
from qkv.studies.vocabulary import (
    ABOVE,
    ANSWERS,
    AT_START,
    BELOW,
    FULL,
    LEARNS_MASKED,
    QUICK,
    Settings,
    arm,
    level,
    near,
    of_learned,
)

MARGIN = 0.05
"""Of a cosine."""
_COSINE, _RANKS, _SHARE, _POINTS = "cosine", "rank correlation", "of all", "points of accuracy"
_MARGINS = {_COSINE: MARGIN, _RANKS: 0.1, _SHARE: 0.05, _POINTS: 5.0}
_STILL: Settings = {**AT_START, "probes": ("contextual",)}
_TRAINED = ("contextual", "change of basis", "analogies", "triplets")


def _arms(steps: int) -> tuple[Arm, ...]:
    return (
        arm("causal", "predicts the next word", probes=_TRAINED),
        arm("masked", "predicts hidden words, in three times the steps (equal number of predictions)", LEARNS_MASKED,
            task="masked", lr=0.003, sizes=(("steps", ANSWERS * steps),),
            probes=("contextual", "analogies", "learned")),
        arm("untrained", "the causal model, untrained", _STILL),
        arm("untrained masked", "the masked model, untrained", LEARNS_MASKED, _STILL, task="masked"),
    )  # fmt: skip


def _classify(steps: int, vocab: int) -> tuple[dict[str, Text], Arm]:
    """The objective of telling classes apart, where the source has labels."""
    return {"labelled": Text(stream="labelled", tokenizer="word", vocab=vocab)}, arm(
        "classify", "classifies texts", text="labelled", task="classify", lr=0.003,
        sizes=(("batch_size", 64), ("steps", steps)), probes=("contextual", "learned"),
    )  # fmt: skip


_PUBLISHED = "published vectors"


def _published(ask: Ask, text: Text) -> tuple[dict[str, Text], tuple[Arm, ...]]:
    """Word vectors of a file beside the text, where one is given."""
    if not ask.has_vectors():
        return {}, ()
    path = Path(given(ask.source).vectors)
    if not ask.named:
        read_vectors(path)  # what is wrong with it is said before anything is made
    what = f"no model: word vectors{path.name and f' of {path.name}'}"
    settings = (("vectors", ask.vectors or sha256_of(path)),)
    return {"beside": dataclasses.replace(text, settings=settings)}, (
        arm(_PUBLISHED, what, AT_START, text="beside", probes=("published",)),
    )


def _measured(
    name: str,
    what: str,
    unit: str,
    *terms: tuple[float, str, str],
    expected: Expected | None = None,
    constant: bool = False,
) -> Contrast:
    margin = _MARGINS[unit]
    return Contrast(
        name=name, what=what, terms=terms, margin=margin, unit=unit, expected=expected, constant=constant
    )  # fmt: skip


def _change(arm: str, measure: str, what: str, last: int, expected: Expected | None = None) -> Contrast:
    return _measured(
        f"{measure}, layer {last} - 0 ({arm})", f"{what} after the last layer, minus the same at layer 0", _COSINE,
        (1.0, arm, f"{measure} {last}"), (-1.0, arm, f"{measure} 0"), expected=expected,
    )  # fmt: skip


_SELF = "how alike one word's vectors in different contexts are, beyond those of different words,"
_WINDOW = "how alike vectors are to the mean of their window, beyond shuffled windows,"
_ONE = "share of a word's occurrences that one vector explains, beyond shuffled words,"
_ASKED_FIRST = ("masked", "classify")
_ASKED, _BEYOND_C = "analogies asked", "beyond the nearest neighbour of c"


def _contextuality(last: int, labelled: bool) -> tuple[Contrast, ...]:
    """What Ethayarajh 2019 measured, and the same before training."""
    arms = ("masked", "untrained", "untrained masked", *(["classify"] if labelled else []))

    def added(arm: str, start: str) -> Contrast:
        return _measured(
            f"self-similarity: {arm} - {start}", f"change of {_SELF} {arm} minus {start}", _COSINE,
            (1.0, arm, f"self-similarity {last}"), (-1.0, arm, "self-similarity 0"),
            (-1.0, start, f"self-similarity {last}"), (1.0, start, "self-similarity 0"),
            expected=BELOW if arm == "causal" else None,
        )  # fmt: skip

    return (
        _change("causal", "self-similarity", _SELF, last, BELOW),
        _measured(
            "self-similarity at the top (causal)", f"{_SELF} after the last layer", _COSINE,
            (1.0, "causal", f"self-similarity {last}"), expected=ABOVE,
        ),
        *(_change(arm, "self-similarity", _SELF, last) for arm in arms),
        added("causal", "untrained"),
        added("masked", "untrained masked"),
        *(_change(arm, "in a window", _WINDOW, last) for arm in ("causal", *arms)),
        _measured(
            "one vector explains (causal)", f"{_ONE} after the last layer", _SHARE,
            (1.0, "causal", f"explained {last}"),
        ),
    )  # fmt: skip


def _static(arm: str, last: int) -> tuple[Contrast, ...]:
    """Bridges from contextual vectors to static ones."""
    mean, counts = (1.0, arm, f"mean ~ W_E {last}"), (1.0, arm, "W_E ~ counts")
    return (
        _measured(
            f"neighbours at the top ({arm})",
            "nearest words by contextual means, after the last layer, that are so by W_E too, beyond chance", _SHARE,
            (1.0, arm, f"neighbours {last}"),
        ),
        _measured(
            f"mean ~ W_E ({arm})", "agreement of similarities: mean vectors after the last layer and W_E", _RANKS, mean,
            expected=ABOVE,
        ),
        _measured(
            f"first component - mean ({arm})", "the same for first principal components, minus that for means", _RANKS,
            (1.0, arm, f"first ~ W_E {last}"), (-1.0, *mean[1:]),
        ),
        _measured(
            f"W_E ~ counts ({arm})", "agreement of similarities: W_E and rows of mutual information", _RANKS, counts,
            expected=ABOVE,
        ),
        _measured(
            f"mean ~ counts - W_E ~ counts ({arm})", "agreement with counts: mean vectors minus rows of W_E", _RANKS,
            (1.0, arm, f"mean ~ counts {last}"), (-1.0, *counts[1:]),
        ),
    )  # fmt: skip


def _warning() -> tuple[Contrast, ...]:
    """What another pair W_Q, W_K with the same scores does."""
    return (
        _measured(
            "q ~ q in another basis (causal)", "agreement of similarities among queries, before and after W_Q and W_K"
            " are exchanged for a pair with the same scores", _RANKS, (1.0, "causal", "q ~ q"),
            expected=Expected(below=1.0),
        ),
        level(
            "scores in another basis (causal)", "largest change of a score by that exchange", "causal", "scores moved",
            1e-6, unit="spreads", expected=near(0.0, 1e-6), constant=True,
        ),
    )  # fmt: skip


def _analogies(ask: Ask, text: Text) -> tuple[Contrast, ...]:
    """How many can be asked; shares of right answers only where they are enough."""
    asked = _measured(
        _ASKED, f"share of {N_QUESTIONS} analogies whose words occur in the validation text", _SHARE,
        (1.0, "causal", _ASKED), constant=True,
    )  # fmt: skip
    if not _enough(ask, text):
        return (asked,)
    whose = {
        "W_E": "rows of W_E",
        "mean": "mean vectors after the last layer",
        "counts": "rows of mutual information",
        "published": "published vectors, among the words that they have",
    }
    asked_of = [*(("causal", name) for name in ("W_E", "mean", "counts")), ("masked", "W_E"), ("masked", "mean")]
    if ask.has_vectors():
        asked_of.append((_PUBLISHED, "published"))
    return asked, *(
        _measured(
            _by_analogy(name, arm, beyond), f"analogies answered correctly by {whose[name]}, {beyond}", _POINTS,
            (1.0, arm, f"{quantity} {name}"), constant=name in ("counts", "published"),
        )  # fmt: skip
        for arm, name in asked_of
        for quantity, beyond in (("analogies", "beyond chance"), ("beyond c", _BEYOND_C))
    )  # fmt: skip


_KIND = "nearer to one of its kind"
_WHERE = {
    "x": "rows of W_E",
    "q": "their queries in the first layer, mean of its heads",
    "k": "their keys there",
    "v": "their values there",
    "counts": "rows of mutual information",
}
_OTHER = "q in another basis"


def _triplets(ask: Ask, text: Text) -> tuple[Contrast, ...]:
    """King, queen, dog: where words of a kind are nearer to each other than to others, and what of it is of the basis.

    Nothing where the vocabulary holds too few of the words.
    """
    if ask.named or len(grouped(ask.corpus(text).tokenizer)) < FEWEST_WORDS:
        return ()
    published = _measured(
        f"{_KIND}: {_PUBLISHED}", "the same for published vectors, among the words that they have", _POINTS,
        (1.0, _PUBLISHED, "triplets published"), constant=True,
    )  # fmt: skip
    return (
        *(
            _measured(
                f"{_KIND}: {name} (causal)", f"triplets such as king, queen, dog whose first two are more alike"
                f" than the others by {whose}, minus the 50% of chance", _POINTS, (1.0, "causal", f"triplets {name}"),
                expected=ABOVE if name == "x" else None, constant=name == "counts",
            )  # fmt: skip
            for name, whose in _WHERE.items()
        ),
        *([published] if ask.has_vectors() else []),
        _measured(
            f"{_KIND}: {_OTHER} - q (causal)",
            "the same for queries in another basis, which leaves every score unchanged, minus that for the queries",
            _POINTS, (1.0, "causal", f"triplets {_OTHER}"), (-1.0, "causal", "triplets q"), expected=BELOW,
        ),
    )  # fmt: skip


def _by_analogy(name: str, arm: str = "causal", beyond: str = _BEYOND_C) -> str:
    return f"analogies by {name} ({arm}) {beyond}"


def _enough(ask: Ask, text: Text) -> bool:
    """Whether the part of the text that is read holds the words of enough analogies."""
    if ask.named:
        return False
    corpus = ask.corpus(text)
    words = {corpus.tokenizer.token(int(i)) for i in np.unique(corpus.val.ids[:MOST_TOKENS])}
    return n_askable(words) >= FEWEST_ASKED


def _design(ask: Ask) -> Design:
    quick, labelled = ask.quick, ask.has_labels()
    vocab = 1000 if quick else 2000
    scale = QUICK if quick else dataclasses.replace(FULL, n_layers=4, steps=600)
    texts, arms = {"text": Text(tokenizer="word", vocab=vocab)}, _arms(scale.steps)
    if labelled:
        more, classify = _classify(200 if quick else 600, vocab)
        texts, arms = texts | more, (*arms, classify)
    more, published = _published(ask, texts["text"])
    contrasts = (
        *_contextuality(scale.n_layers, labelled),
        *(contrast for arm in ("causal", "masked") for contrast in _static(arm, scale.n_layers)),
        *_warning(),
        *_analogies(ask, texts["text"]),
        *_triplets(ask, texts["text"]),
    )
    return make_design(
        ask,
        study="static-or-contextual",
        texts=texts | more,
        scale=scale,
        arms=(*arms, *published),
        contrasts=of_learned(contrasts, _ASKED_FIRST if labelled else _ASKED_FIRST[:1]),
    )


QUESTION = read_question("static-or-contextual", design=_design)
