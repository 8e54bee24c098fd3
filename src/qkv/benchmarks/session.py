"""What a benchmark is asked for, and what it hands back: figures of sides that took turns.

Sides, each in a process of its own, run A B A B after one round that does not count; a figure is the median of its
rounds, with the lowest and the highest beside it, and a ratio is that of two medians. What cannot be run here is left
out by name, never guessed.
"""

import contextlib
import importlib
import importlib.util
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from qkv.benchmarks.processes import Apart, Side, Turn
from qkv.errors import ConfigError

DATA = {
    "tinyshakespeare": "tinyshakespeare/input.txt",
    "enwikinews": "enwikinews/articles.jsonl.gz",
    "phrases": "sst2/train.tsv",
    "wikitext-2": "wikitext-2/train.txt",
    "BERT's vocabulary": "bert-vocab/vocab.txt",
}
"""What benchmarks read -> where it lies inside --data."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What was typed. Raises ConfigError for a folder that is not there."""

    data: Path | None = None
    """Folder of texts, laid out as `DATA` says."""
    nanogpt: Path | None = None
    """A checkout of nanoGPT."""
    source: str = ""
    """The text of `curve` and `time-to-loss`; empty: those of the result pages."""
    tokenizer: str = ""
    """Given to `qkv train`; empty: its default."""
    minutes: tuple[float, ...] = ()
    """Budgets of `curve`, or the cap of `time-to-loss`; empty: those of the result pages."""
    until: float | None = None
    """Nats per token at which `time-to-loss` ends; None: 1.88, with `quick` 2.6."""
    tune: bool = False
    """Whether `curve` also tunes nanoGPT's learning rate."""
    rounds: int | None = None
    """Turns of each side that count; None: 5, with `quick` 3."""
    seeds: int | None = None
    """Trainings of each kind, seeds 1 to this; None: 3, with `quick` 1."""
    device: str = "cpu"
    """Where `step` and `time-to-loss` compute: cpu or cuda, on both sides."""
    quick: bool = False
    """Small sizes, fewer rounds and seeds: shows that all runs, its figures are rough."""

    def __post_init__(self) -> None:
        if self.data is not None and not self.data.is_dir():
            raise ConfigError(f"--data {self.data} is not a folder; expected one that holds {', '.join(DATA.values())}")
        if self.nanogpt is not None and not (self.nanogpt / "train.py").is_file():
            raise ConfigError(f"--nanogpt {self.nanogpt} holds no train.py; expected a checkout of nanoGPT")


class Figure(NamedTuple):
    """One side of one case."""

    case: str
    """What was measured: "4 x 128, 12 x 64 tokens"."""
    side: str
    """Who was measured, the precision with it: "HF GPT-2, bf16"."""
    median: float
    low: float
    high: float
    rounds: int
    """How many values the three are of."""
    unit: str
    ratio: float | None
    """How many times as good as the peer it was compared with; None for a peer, or where none is there."""
    note: str
    """What a reader should know, or empty."""


@dataclass(eq=False)
class Session:
    """Collects figures and sentences of one benchmark after another."""

    asked: Asked
    say: Callable[[str], None]
    """Told what is going on, a sentence at a time."""
    figures: list[Figure] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def rounds(self) -> int:
        """Turns that count."""
        return self.asked.rounds or (3 if self.asked.quick else 5)

    @property
    def seeds(self) -> range:
        """Of trainings."""
        return range(1, 1 + (self.asked.seeds or (1 if self.asked.quick else 3)))

    def run(self, name: str) -> list[Figure]:
        """Measure one benchmark of `BENCHMARKS`; its figures."""
        before = len(self.figures)
        importlib.import_module(f"qkv.benchmarks.{name.replace('-', '_')}").measure(self)
        return self.figures[before:]

    def record(
        self,
        case: str,
        values: Mapping[str, Sequence[float]],
        unit: str,
        *,
        peers: Mapping[str, str] | None = None,
        lower_is_better: bool = False,
        notes: Mapping[str, str] | None = None,
    ) -> None:
        """Keep what the sides of a case measured; `peers` says which side another is compared with."""
        medians = {side: statistics.median(found) for side, found in values.items()}
        for side, found in values.items():
            peer = (peers or {}).get(side)
            ratio = None
            if peer in medians:
                ratio = medians[peer] / medians[side] if lower_is_better else medians[side] / medians[peer]
            note = (notes or {}).get(side, "")
            figure = Figure(case, side, medians[side], min(found), max(found), len(found), unit, ratio, note)
            self.figures.append(figure)

    def leave_out(self, what: str) -> None:
        """Say, once, what is not measured here and why."""
        if what not in self.left_out:
            self.left_out.append(what)

    def path(self, name: str) -> Path | None:
        """A file of --data by its name in `DATA`; None, and said so, where it is not there."""
        path = None if self.asked.data is None else self.asked.data / DATA[name]
        if path is None or not path.is_file():
            where = "give --data DIR" if path is None else f"{path} is not there"
            self.leave_out(f"{name}: {where}")
            return None
        return path

    def nanogpt(self) -> Path | None:
        """The checkout of nanoGPT; None, and said so, where none was given."""
        if self.asked.nanogpt is None:
            self.leave_out("nanoGPT: give --nanogpt DIR, a checkout of karpathy/nanoGPT")
        return self.asked.nanogpt

    def has_transformers(self) -> bool:
        """Whether the library Hugging Face transformers is installed; said where it is not."""
        there = importlib.util.find_spec("transformers") is not None
        if not there:
            self.leave_out("Hugging Face transformers: not installed (pip install transformers)")
        return there


def alternate(sides: Mapping[str, Side], rounds: int, *, apart: bool = True) -> dict[str, list[float]]:
    """What each side's turns give, in turn, `rounds` times after once that does not count.

    `apart`: each in a process of its own, made there; else all in this one, such as sides that share a GPU's memory.
    """
    turns: dict[str, Turn] = {}
    with contextlib.ExitStack() as until_the_end:
        for name, side in sides.items():
            turns[name] = Apart(side) if apart else side()
            if isinstance(own := turns[name], Apart):
                until_the_end.callback(own.close)
        for turn in turns.values():
            turn()
        values: dict[str, list[float]] = {name: [] for name in turns}
        for _ in range(rounds):
            for name, turn in turns.items():
                values[name].append(turn())
    return values
