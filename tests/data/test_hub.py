"""Data sets of the hub are read through their library, and every way that this fails is one sentence."""

import re
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qkv.data.config import DataConfig
from qkv.data.sources.source import open_source, open_validation
from qkv.data.split import split_source
from qkv.errors import MissingExtra, SourceError
from qkv.folder.run_folder import RunFolder
from qkv.installing import install
from qkv.recipe import reload_data

ROWS = [{"label": 1, "text": "first"}, {"label": 0, "text": " "}, {"label": 0, "text": "second"}]


class Rows:
    """The few things of a data set that we use."""

    column_names = ["label", "text"]

    def __init__(self, before: str = "") -> None:
        self.before = before

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, i: int) -> dict:
        return ROWS[i]

    def select_columns(self, names: list[str]) -> "Rows":
        assert set(names) <= set(self.column_names)
        return self

    def iter(self, batch_size: int):
        rows = [row | {"text": f"{self.before}{row['text']}"} if self.before else row for row in ROWS]
        yield {name: [row[name] for row in rows] for name in self.column_names}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """A stand-in for the library that knows one data set; gives the calls made to it."""
    calls: list[tuple] = []

    def load_dataset(path: str, subset: str | None) -> dict[str, Rows]:
        calls.append((path, subset))
        if path != "org/known":
            raise RuntimeError(f"no data set {path}\nand a long story")
        return {name: Rows(f"{name} " if subset else "") for name in (subset or "train").split("+")}

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    return calls


def test_the_training_split_is_read_row_by_row(library: list[tuple]) -> None:
    source = open_source(DataConfig(source="hf:org/known"))
    assert library == [("org/known", None)]
    assert list(source.documents()) == list(source.documents()) == ["first", "second"]
    assert (source.name, source.kind, source.n_bytes) == ("org-known", "hub", 11)
    assert "column 'text'" in source.note


def test_published_splits_are_used_as_they_are_named(library: list[tuple]) -> None:
    config = DataConfig(source="hf:org/known:test+extra+validation+train")
    source = open_source(config)
    assert list(source.documents()) == ["train first", "train  ", "train second"] and source.held_out is not None
    assert list(source.held_out.documents())[0] == "validation first"
    assert split_source(source).rule == (
        "published split: train for training, validation for validation; test left alone; extra left out"
    )
    measured = open_validation(replace(config, val=config.source))
    assert (next(iter(measured.documents())), measured.part) == ("validation first", "validation")


def test_where_none_is_for_validation_a_part_of_the_training_split_is(library: list[tuple]) -> None:
    source = open_source(DataConfig(source="hf:org/known:train+test"))
    assert source.held_out is None and source.published is not None and "test left alone" in source.published.said()
    alone = open_source(DataConfig(source="hf:org/known:train+unsupervised"))
    assert alone.published is None and "splits left out: unsupervised" in alone.note
    with pytest.raises(SourceError, match="has no split named train; it has test, validation"):
        open_source(DataConfig(source="hf:org/known:test+validation"))


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


def test_a_run_on_a_named_column_is_measured_on_the_column_of_that_name(
    library: list[tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another column that holds text is not taken instead, and one that is not there is refused by name."""
    asked: list[DataConfig] = []
    task = types.SimpleNamespace(tokenizer="", load=lambda config, cache: asked.append(config))
    monkeypatch.setattr(reload_data, "find_task", lambda name: task)
    data = DataConfig(source="a.jsonl", text_column="highlights")
    config: Any = types.SimpleNamespace(task="causal", data=data, model=types.SimpleNamespace(classes=(), patches=()))
    reload_data.data_of(RunFolder(Path("run")), config, "hf:org/known", None)
    reload_data.data_of(RunFolder(Path("run")), config, "hf:org/known", None, {"text_column": "text"})
    assert [one.text_column for one in asked] == ["highlights", "text"]
    with pytest.raises(SourceError, match="unknown column 'highlights'.*--text-column"):
        open_validation(asked[0])
