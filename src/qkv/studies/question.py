"""What a question of `studies/questions/` is: words, a design for a text and a budget, and the claim it ends in."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkv.errors import SourceError
from qkv.studies.engine.assembly import software
from qkv.studies.engine.design import Arm, Contrast, Design, Grid, Scale, Text
from qkv.studies.synthetic import streams
from qkv.studies.verdict.comparison import Comparison
from qkv.studies.verdict.judging import Derive, Findings
from qkv.studies.vocabulary import ANSWERS

__all__ = ["Accounts", "Ask", "Claim", "Plain", "Question", "by_verdict", "make_design", "quick_or_full"]

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
    """The answer for who meets attention for the first time: a sentence for each way that the main effect comes out.

    It is about one effect alone, and says no more than its verdict; `{effect}` becomes its size.
    """

    above: str
    """It differs from 0, upwards."""
    below: str
    slightly: str
    """It differs, by less than would matter."""
    equivalent: str
    unresolved: str
    """Open, or left out for want of a model that learned what it is about."""

    @classmethod
    def of(cls, *, above: str, below: str, same: str, unresolved: str) -> "Plain":
        """One whose `slightly` says in some more words, in braces in `same`, what `equivalent` says without them."""
        slightly, equivalent = re.sub(r"[{}]", "", same), re.sub(r"{.*?}", "", same)
        return cls(above=above, below=below, slightly=slightly, equivalent=equivalent, unresolved=unresolved)


def by_verdict(
    result: Comparison, *, unresolved: str, equivalent: str, above: str, below: str, small: str = "", **parts: str
) -> str:
    """Words by how an effect came out, parts put in; `{small}` in those of a difference says that it is trivial."""
    words = {"unresolved": unresolved, "equivalent": equivalent}.get(result.verdict)
    words = words or (above if (result.effect or 0.0) > 0 else below)
    return words.format(small=small if result.verdict == "differs but trivially" else "", **parts)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The answer in words, without the scale, by how the main effect comes out; they end before its number.

    `{small}` and `{beside}` stand for the two below, `{ends}` for what the number is of.
    """

    unresolved: str
    equivalent: str
    above: str
    below: str
    ends: str = ""
    small: str = ", by less than would matter"
    """Said of a difference that is a trivial one."""
    beside: Callable[[Findings], str] = lambda findings: ""
    """What other effects say, in brackets."""

    def __call__(self, findings: Findings) -> str:
        """The words for what was found."""
        return by_verdict(
            findings.primary.result, unresolved=self.unresolved, equivalent=self.equivalent, above=self.above,
            below=self.below, small=self.small, ends=self.ends, beside=self.beside(findings),
        )  # fmt: skip


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
    """What result would show the expectation to be wrong."""
    literature: str
    """What has been published and what it leads one to expect; figures only of sources read in the original."""
    design: Callable[[Ask], Design]
    claim: Callable[[Findings], str]
    """The answer in words, without the scale, for a primary effect that has an interval."""
    plain: Plain
    """The same for a newcomer."""
    also: Mapping[str, Plain] = field(default_factory=dict)
    """Where more than one thing is asked: the effects that answer the others, each with its sentences."""
    accounts: Accounts | None = None
    """Effects that are told in a table of their own too, before all others."""
    heard: str = ""
    """What is often said or read about it that is wrong or half of the truth, and what the whole is; no figures."""
    elsewhere: str = ""
    """Where a run outside the study is known to say otherwise, and what it says: part of the answer's condition."""
    derive: Derive | None = None
    """Measures that need all replicates to be known."""
    counted: Callable[[Ask, Design], str] | None = None
    """A sentence on what was counted on the text, without a training, that its figures have to be read with."""


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
