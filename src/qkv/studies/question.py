"""What a question is: words, and a design for a text and a budget."""

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from qkv.errors import SourceError
from qkv.jsontypes import JsonObject
from qkv.studies.engine.assembly import software
from qkv.studies.engine.design import Arm, Contrast, Design, Grid, Scale, Slice, Text
from qkv.studies.probes.registry import OF_A_TEXT
from qkv.studies.synthetic import streams
from qkv.studies.verdict.judging import Derive

_PASSES = 4
"""How often a training may read each token of its slice: up to here that is about as good as new text (Muennighoff et
al. 2023, arXiv 2305.16264)."""
_ASKED = 3
"""A masked model gets so many times the steps of a causal one where both are compared as they ended (shared.toml)."""
_LEAST_SCORED = 4
"""A slice is scored on at least one `_LEAST_SCORED`th of the validation tokens of the design."""
_MOST_SLICES = 16

QUICK_MINUTES, FULL_MINUTES = 3.0, 150.0
"""Wall time of a study on two cores, by design."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A study as it was asked for."""

    source: str = ""
    """Absolute path of the text; empty is the text inside Python."""
    seeds: int | None = None
    """Replicates; None takes the question's own number."""
    quick: bool = False
    times: int = 1
    """How many times the steps of the question's own quick study."""
    tuned: bool = False
    """Of a quick study: whether its rates were tuned, as those of kept runs were once, instead of known."""
    margin: float | None = None
    """Of the primary contrast; None takes the question's own."""
    cache: Path | None = None
    named: tuple[str, str] | None = None
    """Name and sha256 of a text that is not read: such a design can be told about, and nobody looked at its size."""
    labelled: bool = False
    """Whether a text that is not read is a table of labelled texts."""
    slices: tuple[int, bool] = (1, False)
    """How many slices a text that is not read had, and whether they overlapped."""
    images: tuple[str, str] | None = None
    """Name and sha256 of the images that a source that is not read holds."""
    vectors: str = ""
    """The sha256 of the word vectors that it names; empty where it names none."""

    def corpus(self, text: Text, val_tokens: int = 0, part: Slice | None = None) -> Any:
        """What a text of the design, or a part of it, holds."""
        return streams.corpus(text, self.source, val_tokens, self.cache, part)

    def has_images(self) -> bool:
        """Whether the source holds images."""
        return bool(self.images or streams.given(self.source).images)

    def has_vectors(self) -> bool:
        """Whether the source names a file of word vectors."""
        return bool(self.vectors or streams.given(self.source).vectors)

    def has_labels(self) -> bool:
        """Whether the source is a table of labelled texts, so that arms may classify."""
        if self.named:
            return self.labelled
        try:
            return self.corpus(Text(stream="labelled", tokenizer="word")).kind in ("jsonl", "csv", "tsv")
        except SourceError:
            return False


@dataclass(frozen=True, kw_only=True)
class Plain:
    """The answer for a newcomer, by how one effect came out; `{effect}` becomes its size.

    What is unresolved is said by its interval.
    """

    above: str
    """It differs from 0, upwards."""
    below: str
    same: str
    """Equivalent to 0, so "nearly", not "equal"; also before the size of a difference smaller than the margin."""


@dataclass(frozen=True, kw_only=True)
class Accounts:
    """Several measures of the same things, to be read side by side."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    """What is measured, and the contrast of each column."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """An effect that others measured at another size, as they give it."""

    weights: float
    effect: float
    unit: str
    source: str
    differs: str
    """What is otherwise there than on our ladder."""


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """What the ladder of a question has of its own."""

    effect: str = ""
    """The effect that is followed over sizes; empty is the main one."""
    published: tuple[Published, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question that qkv answers by experiment: a file of `studies/questions`, or one of your own."""

    name: str
    asks: str
    """The question in plain words."""
    answer: str
    """What the answer is given as."""
    falsified_by: str
    """Which result would show the expectation to be wrong."""
    literature: str
    """What has been published and what it suggests; figures only of sources read in the original."""
    design: Callable[[Ask], Design]
    plain: Plain
    """The answer by the main effect."""
    also: Mapping[str, Plain] = field(default_factory=dict)
    """Where more than one thing is asked: the effects that answer the others, each with its sentences."""
    accounts: Accounts | None = None
    """Effects that also have a table of their own, before all others."""
    heard: str = ""
    """What is often said about it that is wrong or half true, and what is true; no figures."""
    elsewhere: str = ""
    """Where a run outside the study contradicts the answer, and what it says: part of the answer's condition."""
    math: tuple[str, ...] = ()
    """What is asked, as formulas: at most three lines, with code marks around each formula."""
    ladder: Ladder = field(default_factory=Ladder)
    labels: Mapping[str, str] = field(default_factory=dict)
    """How effects are named to a reader: pattern of an effect's name -> words, with `{}` for each of its groups."""
    terms: Mapping[str, str] = field(default_factory=dict)
    """What a group becomes there: `QK` -> `W_Q and W_K`."""
    derive: Derive | None = None
    """Measures that need all replicates to be known."""
    counted: Callable[[Ask, Design], str] | None = None
    """A sentence on what was counted on the text without training, needed to read the figures."""

    def label(self, effect: str, otherwise: str) -> str:
        """The name of an effect for a reader: that of the first pattern which matches, or else `otherwise`."""
        for pattern, words in self.labels.items():
            if found := re.fullmatch(pattern, effect):
                return words.format(*(self.terms.get(group, group) for group in found.groups("")))
        return otherwise


def make_design(
    ask: Ask,
    *,
    study: str,
    texts: Mapping[str, Text] | None = None,
    scale: Scale,
    grid: Grid | None = None,
    arms: Sequence[Arm],
    contrasts: Sequence[Contrast],
    replicates: int | None = None,
) -> Design:
    """A design on the text that was asked for, with the replicates and the margin that were asked for.

    Unless said otherwise that text is cut into characters, and a quick study has 6 replicates, a full one 8. Arms of
    a quick study are not tuned: rates are known.

    Raises SourceError where a text is too small for it, ConfigError where it could not answer anything.
    """
    texts = {"text": Text()} if texts is None else texts
    if ask.margin is not None:
        contrasts = (dataclasses.replace(contrasts[0], margin=ask.margin), *contrasts[1:])
    if ask.quick and not ask.tuned:
        arms = _at_known_rates(study, arms)
    if ask.times > 1:
        scale = dataclasses.replace(scale, steps=ask.times * scale.steps)
        arms = [_longer(arm, ask.times) for arm in arms]
    if replicates is None:
        replicates = 6 if ask.quick else 8
    if ask.has_images() and not any(text.stream == "images" for text in texts.values()):
        raise SourceError(f"{study} reads text alone, and {ask.source!r} holds images; give a text, or none")
    if ask.has_vectors() and not any("vectors" in dict(text.settings) for text in texts.values()):
        raise SourceError(f"{study} asks nothing of word vectors, as in {ask.source!r}; give the text alone")
    name, sha256 = ask.named or _read(ask, texts, scale, arms)
    slices, overlapping = ask.slices if ask.named else _slices(ask, texts, scale, arms, replicates)
    return Design(
        study=study,
        quick=ask.quick,
        source_name=name,
        source_sha256=sha256,
        texts=tuple(texts.items()),
        scale=scale,
        grid=grid or Grid(),
        arms=tuple(arms),
        contrasts=tuple(contrasts),
        replicates=replicates if ask.seeds is None else ask.seeds,
        software=software(),
        slices=slices,
        overlapping=overlapping,
    )


@cache
def known(study: str) -> JsonObject:
    """What the kept quick run of a question found: `sd`, the spread between replicates of its main effect, and `rates`.

    `effect` and `unit` are its name and unit. The rate of an arm is the geometric mean of those that its replicates
    chose. Empty for a question without a kept run. A test holds known.json to docs/answers.
    """
    return json.loads(Path(__file__).with_name("known.json").read_text(encoding="utf-8")).get(study, {})


def _at_known_rates(study: str, arms: Sequence[Arm]) -> list[Arm]:
    """The same arms, untuned: at the rates of the kept quick run, or at the centre of the grid."""
    rates = known(study).get("rates", {})
    return [
        dataclasses.replace(arm, tune="none", lr=rates.get(arm.name, arm.lr)) if arm.tune == "own" else arm
        for arm in arms
    ]


def _longer(arm: Arm, times: int) -> Arm:
    """The same arm, trained for as many times the steps where it has its own."""
    sizes = ((name, times * value if name == "steps" else value) for name, value in arm.sizes)
    return dataclasses.replace(arm, sizes=tuple(sizes))


def _read(ask: Ask, texts: Mapping[str, Text], scale: Scale, arms: Sequence[Arm]) -> tuple[str, str]:
    """Name and sha256 of the text, once every arm is seen to have enough of it. Raises SourceError."""
    name, sha256 = "made", "made"  # of a table, what its texts are known by, which may say how they were split
    for key, text in texts.items():
        made = ask.corpus(text)
        if text.stream in ("text", "labelled"):
            if name == "made" or text.stream == "text":
                name, sha256 = made.name, made.sha256
            sizes = [(arm.task, {**vars(scale), **dict(arm.sizes)}) for arm in arms if arm.text == key]
            for task, s in sizes or [("causal", vars(scale))]:
                steps = s["steps"] // _ASKED if task == "masked" else s["steps"]  # by what it is asked
                streams.check_size(made, steps=steps, batch_size=s["batch_size"], n_ctx=s["n_ctx"])
    return name, sha256


def _slices(
    ask: Ask, texts: Mapping[str, Text], scale: Scale, arms: Sequence[Arm], replicates: int
) -> tuple[int, bool]:
    """How many slices of its texts a design has, at most 16, and whether they overlap by half.

    Each has to be long enough for every training on it (`_PASSES`, `_LEAST_SCORED`). They are disjoint where as many as
    the question's own replicates fit, or else overlap by half, or else there is one. Whatever is measured on the very
    same bytes, or counts words of the whole text, has one too.
    """
    if any("val_bytes" in dict(text.settings) for text in texts.values()):
        return 1, False
    if any(probe in OF_A_TEXT for arm in arms for probe in arm.probes):
        return 1, False
    fit, overlapping_fit = _MOST_SLICES, _MOST_SLICES
    for key, text in texts.items():
        used = [{**vars(scale), **dict(arm.sizes)} for arm in arms if arm.text == key and arm.trainer != "none"]
        if text.stream != "text" or not used:
            continue
        made = ask.corpus(text)
        needed = max(math.ceil(s["steps"] * s["batch_size"] * s["n_ctx"] / _PASSES) for s in used)
        needed = min(needed, dict(text.settings).get("train_tokens", needed))
        scored = math.ceil(1.5 * max(s["val_tokens"] / _LEAST_SCORED for s in used))
        val = len(made.val) // scored
        fit = min(fit, len(made.train) // needed, val)
        overlapping_fit = min(overlapping_fit, 2 * len(made.train) // needed - 1, val)
    if fit >= replicates:
        return fit, False
    return (overlapping_fit, True) if overlapping_fit >= replicates else (1, False)
