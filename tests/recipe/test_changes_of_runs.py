"""Changes that speak of another run, or of one that ended: rows by token, other tokenizers, what was held there."""

import shlex
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import qkv
from qkv import cli
from qkv.api import verify
from qkv.errors import ChangeError, RunFolderError
from qkv.folder.run_folder import RunFolder
from qkv.recipe.reload_data import same_data
from qkv.tasks import find_task

SMALL = {"d_model": 16, "n_layers": 1, "n_heads": 2, "n_ctx": 16, "batch_size": 4, "d_mlp": 32}


def train(text: Path, out: Path, said: list[str] | None = None, **options):
    given = {"tokenizer": "char", "steps": 4, "set": SMALL, "report": False, "threads": 1} | options
    return qkv.train(text, out=out, say=[].append if said is None else said.append, **given)


def test_a_row_of_another_run_is_found_by_its_token(small_text: Path, tmp_path: Path) -> None:
    first = train(small_text, tmp_path / "first", seed=2)
    change = [f"W_E[h]=load({first.path}:W_E[t])"]
    run = train(small_text, tmp_path / "second", change=change, freeze=["W_E[h]"])
    assert torch.equal(run.matrix("W_E[h]"), qkv.load(first.path, weights="last").matrix("W_E[t]"))
    with pytest.raises(ChangeError, match=r"first: unknown token 'zz'"):
        train(small_text, tmp_path / "none", change=[f"W_E[h]=load({first.path}:W_E[zz])"])


def test_the_selector_with_a_leading_minus_in_the_docs_freezes_all_but_its_matrices(small_text: Path, tmp_path) -> None:
    typed = "--freeze='-W_E,-W_U'"
    assert typed in (Path(__file__).parents[2] / "docs" / "addresses.md").read_text(encoding="utf-8")
    given = [str(small_text), *shlex.split(typed), "--out", str(tmp_path / "run"), "--steps", "2", "--no-report"]
    assert cli.main(["train", *given, "--threads", "1", "--set", "d_model=16,n_layers=1,n_ctx=16"]) == 0
    run = qkv.load(tmp_path / "run", weights="last")
    start, end = load_file(run.snapshots()[0]), load_file(run.folder.model)
    assert {address for address in start if not start[address].equal(end[address])} == {"W_E", "W_U"}


def test_a_table_under_another_tokenizer_is_refused_and_a_row_of_it_is_not(small_text: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text(small_text.read_text(encoding="utf-8").replace("t", "z"), encoding="utf-8")
    first = train(other, tmp_path / "first", seed=2)
    assert first.matrix("W_E").shape == train(small_text, tmp_path / "same").matrix("W_E").shape
    with pytest.raises(ChangeError, match=r"its rows are of other tokens.*give --tokenizer .*tokenizer.json"):
        train(small_text, tmp_path / "table", change=[f"W_E=load({first.path})"])
    run = train(small_text, tmp_path / "row", change=[f"W_E[h]=load({first.path})"], freeze=["W_E[h]"])
    assert torch.equal(run.matrix("W_E[h]"), qkv.load(first.path, weights="last").matrix("W_E[h]"))
    named = str(first.path / "tokenizer.json")
    run = train(small_text, tmp_path / "given", tokenizer=named, change=[f"W_E=load({first.path})"], freeze=["W_E"])
    assert torch.equal(run.matrix("W_E"), qkv.load(first.path, weights="last").matrix("W_E"))


def test_a_run_that_goes_on_says_what_is_not_held_any_more(small_text: Path, tmp_path: Path) -> None:
    held = train(small_text, tmp_path / "held", change=["L0.W_V=identity", "L0.W_Q=zero@..2"], freeze=["W_E"])
    said: list[str] = []
    qkv.train(small_text, from_run=str(held.path), steps=2, out=tmp_path / "on", report=False, say=said.append)
    assert "What was held there (L0.W_V=identity, W_E=freeze) is trained here" in said[0]
    assert "give --freeze 'L0.W_V'." in said[0]
    more = {"freeze": ["L0.W_V", "W_E"], "report": False, "steps": 2}
    n = len(said)
    again = qkv.train(small_text, from_run=str(held.path), out=tmp_path / "again", say=said.append, **more)
    assert not any("What was held" in sentence for sentence in said[n:])
    assert torch.equal(again.catalogue().state()["L0.W_V"], torch.eye(16))


def test_an_output_held_at_zero_is_refused_where_it_is_the_input_too(small_text: Path, tmp_path: Path) -> None:
    with pytest.raises(ChangeError, match="W_E starts at zero and is frozen there, so no gradient reaches any matrix"):
        train(small_text, tmp_path / "tied", set=SMALL | {"tied": True}, change=["W_U=zero"])
    with pytest.raises(ChangeError, match="leave W_U out of what is frozen"):
        train(small_text, tmp_path / "only", only=["L0.W_K", "head"], freeze=["head"])


def test_a_run_goes_on_only_with_the_file_that_it_began_with(small_text: Path, tmp_path: Path) -> None:
    path = tmp_path / "v.safetensors"
    save_file({"L0.W_Q": torch.zeros(16, 16)}, path)
    run = train(small_text, tmp_path / "run", change=[f"L0.W_Q=load({path})@2.."])
    save_file({"L0.W_Q": torch.ones(16, 16)}, path)
    with pytest.raises(RunFolderError, match="bring the old file back"):
        same_data(RunFolder(run.path), run.config, find_task("causal").load(run.config.data, cache=None))
    checks = {check.name: check for check in verify(run.path).checks}
    assert not checks["replay"].faults and "bring the old file back" in str(checks["replay"].unchecked)
    assert run.evaluate().loss > 0
