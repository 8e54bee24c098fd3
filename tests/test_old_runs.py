"""Runs of released versions, one archive each in `data/runs`: today's code opens, checks and continues all of them."""

import hashlib
import json
import os
import shutil
import tarfile
from pathlib import Path

import pytest
import torch

import qkv
from qkv.cli import main
from qkv.folder.run_folder import RunFolder
from qkv.training.tensorfile import load_weights

ARCHIVES = sorted((Path(__file__).parent / "data" / "runs").glob("*.tar.xz"))


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def old(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder `run` of an archive, beside the text `words.txt` that it was trained on, which lies elsewhere now."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


def told(words: list[str], capsys: pytest.CaptureFixture, status: int = 0) -> dict:
    assert main(words) == status
    return json.loads(capsys.readouterr().out)


def at_home(run: Path) -> None:
    """Say where its text lies now."""
    folder, text = RunFolder(run), str(run.parent / "words.txt")
    config = folder.config.read_text(encoding="utf-8").replace('"/words/words.txt"', json.dumps(text))
    folder.config.write_text(config, encoding="utf-8")
    if folder.is_finished:
        folder.note_hash("config.toml", hashlib.sha256(folder.config.read_bytes()).hexdigest())


def test_an_archive_is_small_and_names_its_version(old: Path) -> None:
    assert all(path.stat().st_size < 150_000 for path in ARCHIVES)
    manifest = RunFolder(old).read_manifest()
    assert manifest["format_version"] and f"{manifest['versions']['qkv']}.tar.xz" in [path.name for path in ARCHIVES]


def test_show_predict_and_report_read_it(old: Path, capsys: pytest.CaptureFixture) -> None:
    files = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    assert told(["show", "run", "--json"], capsys)["run"]
    run = qkv.load(old)
    assert run.summary["steps"] == 16 and 0 < run.history("L0.W_Q", "drift")["L0.W_Q"].value[-1] < 10
    prediction = told(["predict", "run", "the cat", "--tokens", "8", "--seed", "1", "--json"], capsys)
    assert json.dumps(prediction).count("the cat")
    loss = told(["eval", "run", "words.txt", "--json"], capsys)
    assert 1 < loss["loss"] < 4
    assert {path: path.read_bytes() for path in files} == files, "reading changes nothing"
    assert main(["report", "run", "--out", "page.html"]) == 0 and os.path.getsize("page.html") > 100_000


def test_verify_finds_it_whole_and_repeats_its_training(old: Path) -> None:
    at_home(old)
    verdict = qkv.api.verify(old)
    assert verdict.is_whole and not verdict.faults, verdict.faults


def test_it_is_resumed_to_the_same_weights(old: Path) -> None:
    made = load_weights(old / "model.safetensors")
    (old / "manifest.json").unlink()
    shutil.rmtree(old / "checkpoints" / "step-00000016")
    at_home(old)
    run = qkv.train(out=old, resume=True, report=False)
    assert run.summary["resumed_from_step"] == 8
    for name, values in load_weights(old / "model.safetensors").items():
        assert torch.allclose(values, made[name], atol=1e-4), name


def test_another_run_starts_from_it(old: Path) -> None:
    settings = {"batch_size": 4}
    run = qkv.train("words.txt", from_run=str(old), steps=2, out="next", watch="off", report=False, set=settings)
    assert run.summary["steps"] == 2 and run.config.from_run == str(old)
