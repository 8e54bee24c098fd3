"""Is what "related" means determined entirely by the end task?

The same text and body, asked about as many tokens, under different objectives: predicting the next word, predicting
hidden words and, where the source has labels, telling the classes of texts apart. Two models are compared by which
words each holds to be alike, as input (rows of W_E), as answer (columns of W_U, where there is one) and in context, in
rank correlation over all pairs of the commonest words; never by their matrices, whose coordinates say nothing across
seeds. Two seeds of one task, other starts and other batches, do not agree fully either. So agreement across tasks
stands beside the most that noise between seeds would let it be, and beside 0, where tasks share nothing. Positions are
rotary and the start is Glorot's but for small rows of W_E, where a masked model learns in the time of a study and rows
do not keep the likenesses that they started with.

A body that is trained for one task and held, or trained on, under another (feature-based against fine-tuned) is asked
about by `frozen-embeddings` on labelled texts.
"""

import dataclasses

from qkv.studies.engine.design import Arm, Contrast, Design, Text
from qkv.studies.probes.relatedness import AGAIN, SPACES, compared
from qkv.studies.question import Ask, Plain, Question, make_design
from qkv.studies.verdict.judging import Findings
from qkv.studies.vocabulary import ANSWERS, FULL, LEARNS_MASKED, QUICK, Settings, arm, level
from qkv.words import amount

__all__ = ["QUESTION"]

MARGIN = 0.1
_UNIT = "rank correlation"
_CEILED = ("causal", "masked")
"""The tasks whose ceiling is an effect of its own; of others each task's agreement with itself is."""
_PRIMARY = "W_U"
"""Where two seeds of either task agree at all at the size of a quick study (docs/decisions,
2026-11-22-agreement-needs-a-ceiling); W_E and contextual means of a masked model do not there, and stand beside."""
_PROBES = ("relatedness", "contextual")
_WHOSE = {
    "W_E": "rows of W_E",
    "W_U": "columns of W_U",
    "mean": "mean vectors after the last layer",
}
_WHAT = {
    "causal": "predicts the next word",
    "masked": "predicts hidden words, in three times the steps: as many answers",
    "classify": "tells the classes of texts apart",
}


def _twins(task: str, text: str = "text", lr: float = 0.01, sizes: tuple[tuple[str, int], ...] = ()) -> tuple[Arm, Arm]:
    """A task, and the same at the same learning rate from another start on other batches."""
    same: Settings = {"text": text, "task": task, "lr": lr, "sizes": sizes, **LEARNS_MASKED}
    again = f"the same on another seed: start and batches ({task})"
    return arm(task, _WHAT[task], same, probes=_PROBES), arm(
        f"{task}{AGAIN}", again, same, tune=task, trainer="other seed", probes=("relatedness",)
    )


def _beside_ceiling(space: str, some: str, other: str, expected: str = "") -> Contrast:
    """Agreement of two tasks, less the most that noise between seeds would let it be."""
    across, ceiling = f"{space}: {some} ~ {other}", f"{space}: ceiling {some} ~ {other}"
    return Contrast(
        name=f"{across}, less its ceiling",
        what=f"agreement of likenesses between tasks ({_WHOSE[space]}), less what noise between seeds would leave of 1",
        terms=(
            *((0.5, arm, across) for arm in (some, other)),
            *((-0.5, f"{arm}{AGAIN}", ceiling) for arm in (some, other)),
        ),
        margin=MARGIN,
        unit=_UNIT,
        expected=expected,
        beside=(ceiling,) if (some, other) == _CEILED else tuple(f"{space}: {task} ~ {task}" for task in (some, other)),
    )


def _agreement(name: str, what: str, arm: str, expected: str = "") -> Contrast:
    """Agreement itself, by the name of its measure; 0 is none."""
    return level(name, what, arm, name, MARGIN, unit=_UNIT, expected=expected)


def _level(space: str, some: str, other: str, expected: str = "") -> Contrast:
    who = f"two seeds of {some}" if some == other else f"{some} and {other}"
    what = f"agreement of likenesses between {who} ({_WHOSE[space]})"
    return _agreement(f"{space}: {some} ~ {other}", what, some, expected)


def _ceiling(space: str, some: str, other: str) -> Contrast:
    what = f"the most that noise between seeds would let {some} and {other} agree ({_WHOSE[space]})"
    expected = "above 0, else there is nothing to compare"
    return _agreement(f"{space}: ceiling {some} ~ {other}", what, some, expected)


def _counts(task: str) -> Contrast:
    what = "agreement of likenesses between rows of W_E and rows of mutual information in the text"
    return level(f"W_E ~ counts ({task})", what, task, "W_E ~ counts", MARGIN, unit=_UNIT)


def _has(space: str, tasks: tuple[str, ...]) -> bool:
    """A model that tells classes apart has no W_U."""
    return space != "W_U" or "classify" not in tasks


def _contrasts(labelled: bool) -> tuple[Contrast, ...]:
    tasks = ("causal", "masked", *(["classify"] if labelled else []))
    pairs = [(some, other) for i, some in enumerate(tasks) for other in tasks[i + 1 :]]
    across = [(space, *pair) for space in SPACES for pair in pairs if _has(space, pair)]
    return (
        _beside_ceiling(_PRIMARY, *_CEILED, "below 0"),
        *(_ceiling(space, *_CEILED) for space in SPACES),
        *(_level(*where, "above 0: the text decides too") for where in across),
        *(_level(space, task, task, "above 0") for space in SPACES for task in tasks if _has(space, (task,))),
        *(_beside_ceiling(*where) for where in across if where != (_PRIMARY, *_CEILED)),
        *map(_counts, tasks),
    )


def _design(ask: Ask) -> Design:
    labelled, vocab = ask.has_labels(), 1000 if ask.quick else 2000
    scale = QUICK if ask.quick else dataclasses.replace(FULL, steps=600)
    texts = {"text": Text(tokenizer="word", vocab=vocab)}
    arms = (*_twins("causal"), *_twins("masked", sizes=(("steps", ANSWERS * scale.steps),)))
    if labelled:
        texts["labelled"] = Text(stream="labelled", tokenizer="word", vocab=vocab)
        arms += _twins("classify", "labelled", 0.003, (("batch_size", 64), ("steps", 200 if ask.quick else 600)))
    return make_design(
        ask,
        study="end-task",
        texts=texts,
        scale=scale,
        arms=arms,
        contrasts=_contrasts(labelled),
    )


def _claim(findings: Findings) -> str:
    verdict, effect = findings.primary.result.verdict, findings.primary.result.effect or 0.0
    more = _across(findings)
    ends = "agreement of causal and masked models, less the most that noise between seeds would let it be, is"
    if verdict == "left out":
        if findings.effect(f"{_PRIMARY}: ceiling causal ~ masked").result.verdict == "unresolved":
            return "Of the end task nothing can be said: whether two seeds of one task share anything in W_U is open"
        return "Of the end task nothing can be said, for two seeds of one task share next to nothing in W_U"
    if verdict == "unresolved":
        return f"Whether the end task decides which words become alike in W_U is not settled by this run{more}; {ends}"
    if verdict == "equivalent":
        return (
            f"Which words become alike in W_U does not depend on the end task beyond noise between seeds{more}: {ends}"
        )
    small = ", though by less than would matter" if verdict == "differs but trivially" else ""
    if effect > 0:
        return (
            f"Two tasks agree on which words are alike in W_U even more than two seeds of one task{small}{more}: {ends}"
        )
    return f"The end task has a part in which words become alike in W_U{small}{more}: {ends}"


def _something_shared(findings: Findings) -> bool:
    """Whether tasks had anything to agree on."""
    result = findings.effect(f"{_PRIMARY}: ceiling causal ~ masked").told
    return result.verdict == "differs" and (result.effect or 0.0) > 0


def _across(findings: Findings) -> str:
    """How far two tasks agree at all, in brackets; empty where that is not settled, or seeds agree on nothing."""
    result = findings.effect(f"{_PRIMARY}: causal ~ masked").told
    if result.effect is None or result.verdict == "unresolved" or not _something_shared(findings):
        return ""
    if result.verdict == "equivalent":
        return " (across tasks they agree on nothing)"
    if result.effect < 0:
        return f" (across tasks they disagree: {amount(result.effect)})"
    slightly = " slightly" if result.verdict == "differs but trivially" else ""
    return f" (not entirely the task: across tasks they agree{slightly}, by {amount(result.effect, False)})"


QUESTION = Question(
    name="end-task",
    asks='Is what "related" means determined entirely by the end task?',
    answer=(
        "agreement on which words are alike, across tasks, against none and against its ceiling: the most that noise"
        " between seeds would let two tasks agree that mean the same, which is the geometric mean of how far two"
        " trainings of each task agree"
    ),
    falsified_by=(
        "Two tasks agree on which words are alike as much as noise between seeds lets them (then the task decides"
        " nothing); or they agree on nothing where seeds do agree (then it decides all)."
    ),
    literature=(
        "Models that predict the next token, hidden tokens or a translation do other things to the vectors of a token"
        " from layer to layer (Voita et al. 2019, arXiv 1909.01380, abstract). How far their agreement on words falls"
        " below that of two seeds of one task has not been found published for models of this size."
    ),
    plain=Plain(
        above=(
            "Not at all, it seems: by the columns of W_U two tasks agree on which words are alike even more than two"
            " trainings of one task."
        ),
        below=(
            "Not entirely, but it has a part: by the columns of W_U models of two tasks agree less on which words are"
            " alike than two trainings of one task do."
        ),
        slightly=(
            "Hardly: by the columns of W_U models of two tasks agree on which words are alike almost exactly as much as"
            " two trainings of one task do."
        ),
        equivalent=(
            "No: by the columns of W_U models of two tasks agree on which words are alike as much as two trainings of"
            " one task do."
        ),
        unresolved=(
            "Whether by the columns of W_U models of two tasks agree less on which words are alike than two trainings"
            " of one task, this run cannot tell."
        ),
    ),
    also={
        "mean: causal ~ classify": Plain(
            above=(
                "In context a model that tells classes of texts apart and one of next words agree on which words"
                " are alike, by {effect} in rank correlation."
            ),
            below=(
                "In context a model that tells classes of texts apart and one of next words disagree on which words"
                " are alike, by {effect} in rank correlation."
            ),
            slightly=(
                "In context a model that tells classes of texts apart and one of next words hardly agree on which"
                " words are alike."
            ),
            equivalent=(
                "Which words a model that tells classes of texts apart holds to be alike in context has nothing to"
                " do with which a model of next words does."
            ),
            unresolved=(
                "Whether a model that tells classes of texts apart and one of next words agree on which words are"
                " alike in context, this run cannot tell."
            ),
        ),
    },
    heard=(
        "Both that embeddings hold what words mean, and that they hold whatever the end task rewards. Which words two"
        " models find alike can be counted; but two trainings of one and the same task do not agree fully either, and"
        " without that number the first one says nothing."
    ),
    design=_design,
    claim=_claim,
    derive=compared,
)
