"""What a run is, how it was made, what it answers and what it wrote."""

import dataclasses

__all__ = ["AnswerNote", "Evidence", "Fact", "FileNote", "Made", "RunFacts", "SampleNote"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fact:
    """One line of a facts list, already words."""

    label: str
    value: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The head of the page: which run, how large, how long, how good."""

    name: str
    task: str
    preset: str
    verdict: str
    unit: str
    """What one token is, in the singular: character, byte, word or token."""
    n_parameters: int | None
    n_tokens: int | None
    n_steps: int | None
    train_seconds: float | None
    machine: str
    facts: tuple[Fact, ...] = ()
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    tied: bool = False
    mixer: str = "attention"
    """What the layers mix positions by: attention, or what stands in its place."""
    control: str = ""
    """What the labels of the random-label control are, in words."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """A named number behind an answer."""

    label: str
    """With its unit."""
    value: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnswerNote:
    """A question, its answer from this run, and what the answer rests on."""

    key: str
    question: str
    sentence: str
    brief: str = ""
    """The same in a line; empty where `sentence` is one."""
    more: tuple[str, ...] = ()
    null: str = ""
    """What to compare it with, in a sentence."""
    evidence: tuple[Evidence, ...] = ()
    address: str = ""
    """The matrix it is about, if one."""
    measure: str = ""
    """The measure it rests on, if one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleNote:
    """What the model wrote at a step."""

    step: int
    prompt: str
    text: str
    continues: bool = True
    """Whether `text` goes on after `prompt`; else it stands by itself: the prompt with its gaps filled, a label."""
    given: str = ""
    """What a prompt that is not continued is called."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileNote:
    """A file of the run folder and its sha256."""

    name: str
    sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """How the run was made, and how to make it again."""

    command: str
    config: str
    files: tuple[FileNote, ...]
    facts: tuple[Fact, ...]
    events: tuple[Fact, ...] = ()
    written_by: str = ""
