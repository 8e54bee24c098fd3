"""What a question of `studies/questions/` is: words, and a design for a text and a budget."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkv.errors import SourceError
from qkv.studies.engine.assembly import software
from qkv.studies.engine.design import Arm, Contrast, Design, Grid, Scale, Text
from qkv.studies.synthetic import streams
from qkv.studies.verdict.judging import Derive
from qkv.studies.vocabulary import ANSWERS

__all__ = ["Accounts", "Ask", "Plain", "Question", "make_design", "quick_or_full"]

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
    margin: float | None = None
    """Of the primary contrast; None takes the question's own."""
    cache: Path | None = None
    named: tuple[str, str] | None = None
    """Name and sha256 of a text that is not read: such a design can be told about, and nobody looked at its size."""
    labelled: bool = False
    """Whether a text that is not read is a table of labelled texts."""

    images: tuple[str, str] | None = None
    """Name and sha256 of the images that a source that is not read holds."""
    vectors: str = ""
    """The sha256 of the word vectors that it names; empty where it names none."""

    def corpus(self, text: Text, val_tokens: int = 0) -> Any:
        """What a text of the design holds."""
        return streams.corpus(text, self.source, val_tokens, self.cache)

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
    """Equivalent to 0; also before the size of a difference that is smaller than the margin."""


@dataclass(frozen=True, kw_only=True)
class Accounts:
    """Several measures of the same things, to be read side by side."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    """What is measured, and the contrast of each column."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question that qkv answers by experiment; a module of `studies/questions` holds one as `QUESTION`."""

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
    derive: Derive | None = None
    """Measures that need all replicates to be known."""
    counted: Callable[[Ask, Design], str] | None = None
    """A sentence on what was counted on the text without training, needed to read the figures."""


def quick_or_full(quick: Callable[[Ask], Design], full: Callable[[Ask], Design]) -> Callable[[Ask], Design]:
    """The design of a question whose quick study is not its full one in small."""
    return lambda ask: quick(ask) if ask.quick else full(ask)


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

    Unless said otherwise that text is cut into characters, and a quick study has 6 replicates, a full one 8.

    Raises SourceError where a text is too small for it, ConfigError where it could not answer anything.
    """
    texts = {"text": Text()} if texts is None else texts
    if ask.margin is not None:
        contrasts = (dataclasses.replace(contrasts[0], margin=ask.margin), *contrasts[1:])
    if replicates is None:
        replicates = 6 if ask.quick else 8
    if ask.has_images() and not any(text.stream == "images" for text in texts.values()):
        raise SourceError(f"{study} reads text alone, and {ask.source!r} holds images; give a text, or none")
    if ask.has_vectors() and not any("vectors" in dict(text.settings) for text in texts.values()):
        raise SourceError(f"{study} asks nothing of word vectors, as in {ask.source!r}; give the text alone")
    name, sha256 = ask.named or _read(ask, texts, scale, arms)
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
    )


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
                steps = s["steps"] // ANSWERS if task == "masked" else s["steps"]  # by what it is asked
                streams.check_size(made, steps=steps, batch_size=s["batch_size"], n_ctx=s["n_ctx"])
    return name, sha256
