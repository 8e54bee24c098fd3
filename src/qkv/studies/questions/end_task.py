"""Is what "related" means determined entirely by the end task?

The same text and body, with as many predictions, under different objectives: the next word, hidden words and, where the
source has labels, the class of a text. Two models are compared by which words each treats as alike: as input (rows of
W_E), as output (columns of W_U, where there is one) and in context. The measure is the rank correlation over all pairs
of the most frequent words; matrices are never compared directly, since their coordinates mean nothing across seeds. Two
seeds of one task do not fully agree either. So agreement across tasks is compared with the most that noise between
seeds allows, and with 0, where tasks share nothing. Positions are rotary and initialization is Glorot, but rows of W_E
are small: a masked model then learns within a study's time, and rows do not keep their initial similarities.

A body trained for one task and then frozen or fine-tuned for another is the subject of `frozen-embeddings` on labeled
texts.
"""

import dataclasses

from qkv.studies.engine.design import Arm, Contrast, Design, Text
from qkv.studies.expectation import Expected
from qkv.studies.probes.relatedness import AGAIN, SPACES, compared
from qkv.studies.question import Ask, make_design, read_question
from qkv.studies.vocabulary import ABOVE, ANSWERS, BELOW, FULL, LEARNS_MASKED, QUICK, Settings, arm, level

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
    "masked": "predicts hidden words, in three times the steps (equal number of predictions)",
    "classify": "classifies texts",
}


def _twins(task: str, text: str = "text", lr: float = 0.01, sizes: tuple[tuple[str, int], ...] = ()) -> tuple[Arm, Arm]:
    """A task, and the same at the same learning rate from another start on other batches."""
    same: Settings = {"text": text, "task": task, "lr": lr, "sizes": sizes, **LEARNS_MASKED}
    again = f"the same with another seed ({task})"
    return arm(task, _WHAT[task], same, probes=_PROBES), arm(
        f"{task}{AGAIN}", again, same, tune=task, trainer="other seed", probes=("relatedness",)
    )


def _beside_ceiling(space: str, some: str, other: str, expected: Expected | None = None) -> Contrast:
    """Agreement of two tasks, less the most that noise between seeds would let it be."""
    across, ceiling = f"{space}: {some} ~ {other}", f"{space}: ceiling {some} ~ {other}"
    return Contrast(
        name=f"{across}, less its ceiling",
        what=f"agreement of tasks on which words are alike ({_WHOSE[space]}), minus the most that seed noise allows",
        terms=(
            *((0.5, arm, across) for arm in (some, other)),
            *((-0.5, f"{arm}{AGAIN}", ceiling) for arm in (some, other)),
        ),
        margin=MARGIN,
        unit=_UNIT,
        expected=expected,
        beside=(ceiling,) if (some, other) == _CEILED else tuple(f"{space}: {task} ~ {task}" for task in (some, other)),
    )


def _agreement(name: str, what: str, arm: str, expected: Expected | None = None) -> Contrast:
    """Agreement itself, by the name of its measure; 0 is none."""
    return level(name, what, arm, name, MARGIN, unit=_UNIT, expected=expected)


def _level(space: str, some: str, other: str, expected: Expected | None = None) -> Contrast:
    who = f"two seeds of {some}" if some == other else f"{some} and {other}"
    what = f"agreement on which words are alike, between {who} ({_WHOSE[space]})"
    return _agreement(f"{space}: {some} ~ {other}", what, some, expected)


def _ceiling(space: str, some: str, other: str) -> Contrast:
    what = f"the highest agreement of {some} and {other} that noise between seeds allows ({_WHOSE[space]})"
    expected = ABOVE
    return _agreement(f"{space}: ceiling {some} ~ {other}", what, some, expected)


def _counts(task: str) -> Contrast:
    what = "agreement on which words are alike, between rows of W_E and rows of mutual information in the text"
    return level(f"W_E ~ counts ({task})", what, task, "W_E ~ counts", MARGIN, unit=_UNIT)


def _has(space: str, tasks: tuple[str, ...]) -> bool:
    """A model that tells classes apart has no W_U."""
    return space != "W_U" or "classify" not in tasks


def _contrasts(labelled: bool) -> tuple[Contrast, ...]:
    tasks = ("causal", "masked", *(["classify"] if labelled else []))
    pairs = [(some, other) for i, some in enumerate(tasks) for other in tasks[i + 1 :]]
    across = [(space, *pair) for space in SPACES for pair in pairs if _has(space, pair)]
    return (
        _beside_ceiling(_PRIMARY, *_CEILED, BELOW),
        *(_ceiling(space, *_CEILED) for space in SPACES),
        *(_level(*where, ABOVE) for where in across),
        *(_level(space, task, task, ABOVE) for space in SPACES for task in tasks if _has(space, (task,))),
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


QUESTION = read_question("end-task", design=_design, derive=compared)
