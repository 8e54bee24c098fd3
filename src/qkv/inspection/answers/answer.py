"""An answer read from a run, and the evidence it is read from: telemetry, weights, tokenizer, configuration.

Evidence is whatever the run folder holds; a question that finds too little answers nothing.
"""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from qkv.errors import QkvError
from qkv.inspection.stored_run import StoredRun, stored
from qkv.tasks import Task
from qkv.telemetry import Telemetry
from qkv.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A question, its answer in a sentence, and the numbers behind it."""

    key: str
    """One word: embeddings, matrices, ledger, heads, loss, over-fitting, order, frozen, samples, events, trouble,
    agreement, ladders, watch, import, succession."""
    question: str
    sentence: str
    brief: str = ""
    """The same in a line for a first glance; empty where `sentence` is one already."""
    more: tuple[str, ...] = ()
    numbers: dict[str, float | None] = field(default_factory=dict)
    """What the sentences rest on, by label with its unit; None is undefined."""
    address: str = ""
    """The matrix, head or row that it is about."""
    measure: str = ""
    """The measure that it rests on."""
    null: str = ""
    """What to compare it with, in a sentence: the random-label control, the start, an ignorant model; or empty."""
    weight: float = 0.3
    """What puts answers in order, 0 (as expected) to 1 (read this first)."""


class Evidence:
    """What a run folder says, and what was recorded; every part is None, or empty, where it is missing."""

    def __init__(self, run: str | Path | StoredRun, telemetry: Telemetry) -> None:
        self.run, self.telemetry = StoredRun.of(run), telemetry
        self.folder = self.run.folder

    @property
    def n_answers(self) -> int:
        """How many answers the model chooses among: classes, or tokens; 0 where it is not known or no fixed number."""
        classes = self.run.settings.get("model", {}).get("classes") or ()
        tokenizer = self.run.tokenizer
        n = self.run.task.guessed or len(classes) or (tokenizer.d_vocab if tokenizer is not None else 0)
        return n if n > 1 else 0

    @property
    def unit(self) -> str:
        """What one target of the loss is, in the singular."""
        return unit_of(self.run.task, self.run.tokenizer)

    @property
    def weight_decay(self) -> float:
        """Of the optimizer; 0 where it is not known."""
        return float(self.run.settings.get("training", {}).get("optimizer", {}).get("weight_decay", 0.0))

    @property
    def specials(self) -> frozenset[int]:
        """Ids of special tokens."""
        return frozenset((self.telemetry.fact("special_tokens") or {}).values())

    def matrix(self, address: str, step: int | None = None) -> np.ndarray | None:
        """A stored matrix at a step, or the last one; None where it was not kept."""
        try:
            return stored(self.folder.path, address, step)
        except QkvError:
            return None

    def token(self, i: int) -> str:
        """A token as a person reads it, quoted."""
        return json.dumps(self.run.tokenizer.token(i) if self.run.tokenizer is not None else i, ensure_ascii=False)

    def example(self, counts: np.ndarray | None) -> int | None:
        """The token to show a row of: `the`, or the most frequent one that is not special."""
        if self.run.tokenizer is not None:
            the = self.run.tokenizer.readable.get("the")
            if the is not None and (counts is None or counts[the] > 0):
                return the
        if counts is None:
            return None
        ordinary = np.array([i not in self.specials for i in range(len(counts))])
        return int(np.argmax(np.where(ordinary, counts, -1)))


def unit_of(task: Task, tokenizer: Tokenizer | None) -> str:
    """What one target of the loss is, in the singular; of a text's tokens, what a token is."""
    if task.target != "token":
        return task.target
    kind = tokenizer.kind if tokenizer is not None else ""
    return {"char": "character", "byte": "byte", "word": "word"}.get(kind, "token")


def apart(value: float, null: float) -> float:
    """How far two positive numbers are apart: 0 where they are equal, 1 from a factor of 4 on, either way."""
    if not (value > 0 and null > 0):
        return 0.0
    return min(1.0, abs(math.log(value / null)) / math.log(4))
