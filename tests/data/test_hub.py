"""Data sets of the hub are read through their library, and every way that this fails is one sentence."""

import re
import sys
import types

import pytest

from qkv.data.config import DataConfig
from qkv.data.sources.source import open_source
from qkv.errors import MissingExtra, SourceError
from qkv.installing import install

ROWS = [{"label": 1, "text": "first"}, {"label": 0, "text": " "}, {"label": 0, "text": "second"}]


class Rows:
    """The few things of a data set that we use."""

    column_names = ["label", "text"]

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, i: int) -> dict:
        return ROWS[i]

    def select_columns(self, names: list[str]) -> "Rows":
        assert set(names) <= set(self.column_names)
        return self

    def iter(self, batch_size: int):
        yield {name: [row[name] for row in ROWS] for name in self.column_names}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """A stand-in for the library that knows one data set; gives the calls made to it."""
    calls: list[tuple] = []

    def load_dataset(path: str, subset: str | None, split: str) -> Rows:
        calls.append((path, subset, split))
        if path != "org/known":
            raise RuntimeError(f"no data set {path}\nand a long story")
        return Rows()

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    return calls


def test_the_training_split_is_read_row_by_row(library: list[tuple]) -> None:
    source = open_source(DataConfig(source="hf:org/known:small"))
    assert library == [("org/known", "small", "train")]
    assert list(source.documents()) == list(source.documents()) == ["first", "second"]
    assert (source.name, source.kind, source.n_bytes) == ("org-known-small", "hub", 11)
    assert "column 'text'" in source.note


def test_a_data_set_that_cannot_be_loaded_is_refused_in_one_sentence(library: list[tuple]) -> None:
    with pytest.raises(SourceError, match="hf: names no data set; expected hf:NAME"):
        open_source(DataConfig(source="hf:"))
    with pytest.raises(SourceError, match="hf:org/wrong cannot be loaded: no data set org/wrong") as caught:
        open_source(DataConfig(source="hf:org/wrong"))
    assert "\n" not in str(caught.value)
    with pytest.raises(SourceError, match="unknown column 'txet'; did you mean 'text'"):
        open_source(DataConfig(source="hf:org/known", text_column="txet"))


def test_a_column_of_lists_is_refused_in_one_sentence(library: list[tuple], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"label": 1, "text": text} for text in (None, "first", ["a", "b"])]
    monkeypatch.setattr(sys.modules[__name__], "ROWS", rows)
    with pytest.raises(SourceError, match="hf:org/known: column 'text' is list; expected text"):
        open_source(DataConfig(source="hf:org/known", text_column="text"))


def test_without_the_library_the_line_to_type_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match=re.escape(install("hub"))):
        open_source(DataConfig(source="hf:org/known"))
