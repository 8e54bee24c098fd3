"""What a question of `studies/questions/` is: words, a design for a text and a budget, and the claim it ends in."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.errors import SourceError
from qkv.studies.engine.assembly import software
from qkv.studies.engine.design import Arm, Contrast, Design, Grid, Scale, Text
from qkv.studies.synthetic import streams
from qkv.studies.verdict.judging import Derive, Findings

__all__ = [
    "Accounts",
    "ANSWERS",
    "IN_DEMO",
    "LEARNS_MASKED",
    "LEARNS_RECALL",
    "RECALLED",
    "Ask",
    "Plain",
    "Question",
    "learned",
    "make_design",
    "of_learned",
    "of_recalling",
]

QUICK_MINUTES, FULL_MINUTES = 3.0, 150.0
"""Wall time of a study on two cores, by design."""
ANSWERS = 3
"""How many times the steps of a causal model a masked one gets where the two are compared as they ended: it is asked
30 % of the tokens that it reads, the other all of them."""
LEARNS_MASKED: dict[str, Any] = {
    "layout": (("positions", "rotary"), ("start", "xavier")),
    "changes": ("W_E=random(0.02,train=true)",),
}
"""Of the arms of studies that need a masked model to learn more than frequencies in their time. From N(0, 0.02) with
learned positions it stands still there; rotary positions and Glorot's start let it go on (docs/decisions,
2026-11-22-masked-arms-need-a-start-that-learns). Rows of W_E start small all the same: large ones would keep the
likenesses that they started with."""

IN_DEMO = (
    "Known not to hold in the default model of `make demo` (4 layers, d_model 192, untied, Muon, W_O, W_out and W_U at"
    " 0 at the start, 600 steps of 16 windows, Python's documentation in bpe tokens; one run)"
)
"""How `Question.elsewhere` begins; its figures are those of docs/answers/demo.json, which a test holds them to."""

RECALLED = Text(stream="recall", settings=(("keys", 8), ("values", 8)))
"""A table that is learned to be looked up within a study."""
LEARNS_RECALL: dict[str, Any] = {
    "text": "recall",
    "task": "recall",
    "lr": 0.003,
    "layout": (("start", "xavier"),),
    "sizes": (("n_ctx", 32), ("batch_size", 32)),
}
"""Of arms on it: 1,000 steps recall all of it, d_model 64. Sixteen keys from N(0, 0.02) stay near what one gets who
knows which values were told but not where, and there a share of what was recalled is a share of nothing
(docs/decisions, 2026-11-24-rows-need-a-baseline-that-learned)."""
_LEARNED_NATS = 0.05
"""Beyond frequencies: who saves no more has learned nothing."""


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
    also: tuple[tuple[str, Plain], ...] = ()
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


def learned(arm: str) -> Contrast:
    """Whether an arm, which has the probe `learned`, ended better than who knows how often each answer is one."""
    return Contrast(
        name=f"learned ({arm})", what="nats that the model saves whoever knows how often each answer is one",
        terms=((1.0, arm, "beyond frequencies"),), margin=_LEARNED_NATS, unit="nats per answer",
        expected="above 0, else nothing is said of the arm",
    )  # fmt: skip


def of_learned(contrasts: tuple[Contrast, ...], arms: tuple[str, ...]) -> tuple[Contrast, ...]:
    """The same, and of each of those arms whether it learned anything, which all that reads it needs."""

    def of(contrast: Contrast) -> Contrast:
        needs = [learned(arm).name for arm in contrast.arms if arm in arms]
        return dataclasses.replace(contrast, needs=needs[0]) if needs else contrast

    return (*map(of, contrasts), *map(learned, arms))


def recalls(arm: str) -> Contrast:
    """Whether an arm, which has the probe `answers`, looks up what it is asked for, and does not only guess well.

    Who knows which of 8 values were told, but not where, is right about a third of the time.
    """
    return Contrast(
        name=f"recalls ({arm})", what="answers that it tells rightly", terms=((1.0, arm, "answers"),), margin=50.0,
        unit="points of 100", expected="above 50, else nothing is said of the arm",
    )  # fmt: skip


def of_recalling(contrasts: tuple[Contrast, ...], arm: str) -> tuple[Contrast, ...]:
    """The same, all of which need that arm to recall, and whether it does."""
    return (*(dataclasses.replace(contrast, needs=recalls(arm).name) for contrast in contrasts), recalls(arm))


def make_design(
    ask: Ask,
    *,
    study: str,
    texts: dict[str, Text],
    scale: Scale,
    grid: Grid,
    arms: tuple[Arm, ...],
    contrasts: tuple[Contrast, ...],
    replicates: int,
) -> Design:
    """A design on the text that was asked for, with the replicates and the margin that were asked for.

    Raises SourceError where a text is too small for it, ConfigError where it could not answer anything.
    """
    if ask.margin is not None:
        primary = Contrast(**{**vars(contrasts[0]), "margin": ask.margin})
        contrasts = (primary, *contrasts[1:])
    if ask.seeds is not None:
        replicates = ask.seeds
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
        grid=grid,
        arms=arms,
        contrasts=contrasts,
        replicates=replicates,
        software=software(),
    )


def _read(ask: Ask, texts: dict[str, Text], scale: Scale, arms: tuple[Arm, ...]) -> tuple[str, str]:
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
