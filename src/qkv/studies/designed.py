"""A study of your own in Python: a `Design` holds what FILE.toml would, and is checked in the same words.

qkv.study(Design(
    question="Does QK-norm help on my text?",
    source="my.txt",
    minutes=60,
    arms={"with": Arm(set={"layout.qk_norm": True}), "without": Arm(set={"layout.qk_norm": False})},
    effects=[Effect(name="cost of leaving it out", of="loss", between=("without", "with"), margin=0.02)],
))
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from qkv.extensions import Registry, instance_of, spec_of
from qkv.jsontypes import JsonObject
from qkv.studies.engine.training_log import Finished
from qkv.studies.expectation import Expected

Setting = bool | int | float | str | Callable[..., object]
"""A value of a setting; for `optimizer.kind` and `model.kind` also a class of your own."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to train."""

    set: Mapping[str, Setting] = field(default_factory=dict)
    """Settings by name, over those of the base."""
    changes: Sequence[str] = ()
    """Changes in the change language, such as `W_E=freeze`."""
    what: str = ""
    """What it does, for tables."""
    trainer: str = ""
    """Another way to train, such as "two halves" or "none"; empty is the usual loop."""
    labels: str = ""
    """"uniform" trains the random-label control."""
    tune: str = ""
    """The arm whose learning rate it takes; empty tunes its own."""
    probes: Sequence[str] = ()
    """What is measured at the end beside what its effects need."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """A difference between two arms, or what one arm measured."""

    name: str
    of: str | Callable[[Finished], float]
    """A quantity such as "loss", or a function of a finished training: its `model`, `loss`, `corpus` and `parts`."""
    between: tuple[str, str] | None = None
    """The effect is the first arm's quantity minus the second's."""
    arm: str = ""
    """In place of `between`: the arm whose quantity it is."""
    margin: float
    """The largest difference that would not matter."""
    what: str = ""
    """What a positive number means, for tables."""
    unit: str = ""
    """Of a function of your own."""
    expected: Expected | None = None
    """What you expect, before anything is trained."""


@dataclass(frozen=True, kw_only=True)
class Design:
    """A question, its arms and its effects. The first effect is the main one."""

    question: str
    arms: Mapping[str, Arm]
    effects: Sequence[Effect]
    source: str | Path = ""
    """The text; empty is the one inside your Python."""
    base: Mapping[str, Setting] = field(default_factory=dict)
    """Settings of all arms, `preset` among them."""
    minutes: float = 0.0
    """The budget; 0 leaves it to `qkv.study(..., minutes=)`."""
    steps: int | None = None
    """Of every training; None lets the budget decide."""
    seeds: int | None = None
    """Paired replicates; None lets the budget decide."""
    task: str = "causal"
    tokenizer: str = ""
    """Empty is that of the task."""
    vocab: int = 0
    """Of a fitted tokenizer; 0 is the usual size."""
    name: str = ""
    """Of its folder; empty is made from the question."""

    @property
    def title(self) -> str:
        """How its folder is called."""
        return self.name or re.sub(r"\W+", "-", self.question.lower()).strip("-")[:40] or "study"

    def table(self) -> JsonObject:
        """What its file would hold. Raises ConfigError for code of one's own that other processes could not find."""
        made = {**vars(self), "source": str(self.source), "base": dict(self.base)}
        made["budget"] = {"minutes": self.minutes} if self.minutes else None
        made["arms"] = {name: _arm(arm) for name, arm in self.arms.items()}
        made["effects"] = [_effect(each) for each in self.effects]
        said = made.keys() - {"name", "minutes"}
        return {k: v for k, v in made.items() if k in said and (v or k in ("question", "source", "arms", "effects"))}


def _arm(arm: Arm) -> JsonObject:
    made = {**vars(arm), "set": dict(arm.set), "changes": list(arm.changes), "probes": list(arm.probes)}
    return {name: value for name, value in made.items() if value}


def _effect(effect: Effect) -> JsonObject:
    made = {**vars(effect), "of": spec_of(effect.of, "of") if callable(effect.of) else effect.of}
    made |= {"between": list(effect.between or ()), "expected": effect.expected and effect.expected.to_json()}
    return {name: value for name, value in made.items() if value or name in ("name", "of", "margin")}


STUDIES: Registry[Design] = Registry("studies", {}, instance_of(Design))
"""Those that other packages add."""
