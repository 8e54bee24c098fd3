"""What the data of every task says of itself."""

from collections.abc import Sized
from dataclasses import dataclass, field

from qkv.data.sources.receipt import Receipt


@dataclass(frozen=True, kw_only=True, eq=False)
class DataSet:
    """Data to train on and to measure on, and what they came from."""

    name: str
    """Short and safe in a file name."""
    kind: str
    """What was read: default, text, folder, hub; jsonl, csv, tsv, lines; idx, classes; pairs."""
    sha256: str
    """Of the sources as they lie on disk, joined with that of a source given for validation."""
    rule: str
    """One sentence: how the parts were made."""
    note: str = ""
    """What a person should know about how the sources were read, or empty."""
    receipt: Receipt = field(default_factory=Receipt, repr=False)
    """What became of every file, row, column and class."""
    train: Sized

    @property
    def n_train(self) -> int:
        """How much there is to train on, in what the task's size law counts."""
        return len(self.train)

    @property
    def note_sentence(self) -> str:
        """The note as a sentence behind another one; empty where there is none."""
        return f" {self.note[0].upper()}{self.note[1:]}." if self.note else ""
