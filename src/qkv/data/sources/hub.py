"""Texts from the Hugging Face hub: `hf:NAME` or `hf:NAME:SUBSET`, one document a row, the splits as published.

Needs the `hub` extra. This is the only source that may ask the network; what it brings stays in that library's cache.
"""

import hashlib
from collections.abc import Iterator
from typing import Any

from qkv.data.sources.tables import SURVEYED_ROWS, choose_text
from qkv.errors import MissingExtra, SourceError, first_line
from qkv.installing import install
from qkv.words import some


def hub_splits(name: str) -> dict[str, object]:
    """The splits of a data set by their names, one of them called train.

    Raises MissingExtra without the library, SourceError where the data set cannot be loaded or has no such split.
    """
    path, _, subset = name.partition(":")
    if not path:
        raise SourceError("hf: names no data set; expected hf:NAME or hf:NAME:SUBSET, as hf:roneneldan/TinyStories")
    try:
        import datasets  # type: ignore[import-not-found]
    except ImportError:
        raise MissingExtra(f"hf:{name} needs another library; type: {install('hub')}") from None
    try:
        splits = dict(datasets.load_dataset(path, subset or None))
    except Exception as error:  # the library raises many kinds, for the network as for a wrong name
        raise SourceError(f"hf:{name} cannot be loaded: {first_line(error)}") from None
    if "train" not in splits:
        raise SourceError(f"hf:{name} has no split named train; it has {some(list(splits), 6)}")
    return splits


class HubTexts:
    """The texts of one split of a data set.

    Raises SourceError where it holds no text.
    """

    def __init__(self, name: str, rows: Any, text_column: str = "", label_column: str = "") -> None:
        self._rows = rows
        first = [dict(self._rows[i]) for i in range(min(SURVEYED_ROWS, len(self._rows)))]
        columns = tuple(self._rows.column_names)
        self.column = choose_text(f"hf:{name}", columns, first, text_column, label_column)
        self._name = name
        digest, self.n_bytes = hashlib.sha256(), 0
        for text in self:
            data = text.encode("utf-8", "replace")
            digest.update(data + b"\0")
            self.n_bytes += len(data)
        self.sha256 = digest.hexdigest()
        """Of all texts, each followed by NUL."""

    def __iter__(self) -> Iterator[str]:
        """The text of each row that has one. Raises SourceError where the column holds something else."""
        for batch in self._rows.select_columns([self.column]).iter(batch_size=1000):
            for text in batch[self.column]:
                if text is not None and not isinstance(text, str):
                    kind = type(text).__name__
                    raise SourceError(f"hf:{self._name}: column {self.column!r} is {kind}; expected text")
                if text and text.strip():
                    yield text
