"""Runs whose files are not what training wrote: what would use them refuses in one sentence, what shows says so."""

import contextlib
import io
import json
import os
import shutil
import sqlite3
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import qkv
from qkv import cli
from qkv.errors import DamagedFileError
from qkv.folder.run_folder import RunFolder, sha256_of
from qkv.views.report.report import read_report

SIZES = ["--tokenizer", "char", "--set", "n_layers=1,d_model=16,n_heads=2,n_ctx=16,batch_size=4", "--threads", "1"]
BEST, MODEL = "best.safetensors", "model.safetensors"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, small_text: Path) -> Path:
    """A run of 20 updates; its weights are files of their own, as in a run that was copied."""
    place = tmp_path_factory.mktemp("good")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        words = ["train", str(small_text), *SIZES, "--steps", "20", "--seed", "3", "--no-report"]
        assert cli.main([*words, "--out", str(place / "run")]) == 0
    shutil.copytree(place / "run", place / "copy")
    return place / "copy"


@pytest.fixture
def run(good: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    shutil.copytree(good, tmp_path / "run")
    return tmp_path / "run"


def seal(run: Path) -> None:
    """Let the manifest agree with the files again, as one who may write the folder can."""
    folder = RunFolder(run)
    manifest = folder.read_manifest()
    folder.write_manifest(manifest | {"files": {name: sha256_of(run / name) for name in manifest["files"]}})


def flip(path: Path, at: int = -5, bit: int = 0x40) -> None:
    """Turn one bit over as a disk does it: size and dates stay."""
    before, data = path.stat(), bytearray(path.read_bytes())
    data[at] ^= bit
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def not_finite(run: Path) -> None:
    weights = load_file(run / BEST)
    weights["L0.W_K"].view(-1)[3] = float("inf")
    save_file(weights, run / BEST)
    seal(run)


def whole_numbers(run: Path) -> None:
    data = (run / BEST).read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    (run / BEST).write_bytes(data[:8] + data[8:end].replace(b'"F32"', b'"I32"') + data[end:])
    seal(run)


def another_letter(run: Path) -> None:
    path = run / "tokenizer.json"
    flip(path, path.read_bytes().index(b'"c":') + 1, 0x20)


def another_loss(run: Path) -> None:
    with sqlite3.connect(run / "telemetry.sqlite") as database:
        loss = database.execute("SELECT loss FROM steps WHERE arm = 0 AND step = 10").fetchone()[0]
    database.close()
    path = run / "telemetry.sqlite"
    flip(path, path.read_bytes().index(struct.pack(">d", loss)) + 1, 0x10)


def said(capsys: pytest.CaptureFixture[str], *words: object, status: int = 0) -> str:
    """All that a command prints."""
    capsys.readouterr()
    got = cli.main([str(word) for word in words])
    out, err = capsys.readouterr()
    assert got == status, out + err
    return out + err


def uses(run: Path, out: Path, text: Path) -> dict[str, list[object]]:
    """The command lines that use the weights of a run."""
    return {
        "predict": ["predict", run, "the cat", "--tokens", 4],
        "eval": ["eval", run],
        "embed": ["embed", run, "the cat"],
        "step": ["step", run, "the cat"],
        "export": ["export", run, "--out", out / "hf"],
        "from": ["train", text, "--from", run, "--out", out / "more", "--steps", 2, "--no-report"],
    }


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda run: flip(run / BEST), f"{BEST} is damaged: its bytes are not those that were written"),
        (not_finite, f"{BEST} is damaged: L0.W_K holds numbers that are not finite"),
        (whole_numbers, "is stored as I32; weights are F64, F32, F16, BF16"),
        (another_letter, "tokenizer.json is damaged: its bytes are not those that were written"),
        (lambda run: flip(run / "config.toml", 9), "config.toml is damaged: its bytes are not those that were written"),
    ],
    ids=["bit", "infinity", "whole numbers", "tokenizer", "configuration"],
)
def test_whatever_uses_a_damaged_run_refuses_and_makes_nothing(run, tmp_path, small_text, capsys, harm, why):
    harm(run)
    (tmp_path / "out").mkdir()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for name, words in uses(run, tmp_path / "out", small_text).items():
        if name == "step" and why.startswith((BEST, "is stored")):  # it reads the last weights
            continue
        printed = said(capsys, *words, status=2).replace("--from ", "")
        assert printed.startswith(f"qkv: {run}") or name == "from", printed
        assert why in printed and printed.count("\n") == 1 and "qkv verify" in printed, (name, printed)
    assert not list((tmp_path / "out").iterdir())
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_the_other_weights_are_named_where_they_are_whole_and_work(run, capsys):
    for name, other in ((BEST, "last"), (MODEL, "best")):
        flip(run / name)
        damaged = "best" if other == "last" else "last"
        for words in (["predict", run, "the cat", "--tokens", 4], ["eval", run], ["embed", run, "the cat"]):
            printed = said(capsys, *words, "--weights", damaged, status=2)
            assert f"the {other} weights are whole: a command that has the option takes them by --weights" in printed
            said(capsys, *words, "--weights", other)
        flip(run / name)
    flip(run / BEST)
    flip(run / MODEL)
    assert "--weights" not in said(capsys, "predict", run, "the cat", status=2)


def test_a_copy_that_is_typed_as_told_brings_the_weights_back(run, capsys):
    flip(run / BEST)
    told = said(capsys, "predict", run, "the cat", status=2)
    shutil.copy(*told.split("cp ")[1].split()[:2])
    said(capsys, "predict", run, "the cat", "--tokens", 4)


def test_python_is_refused_too_and_a_change_that_loads_from_it(run, good, capsys):
    flip(run / BEST)
    loaded = qkv.load(run)
    for ask in (
        lambda: loaded.model,
        lambda: loaded.predict(["a"]),
        lambda: loaded.matrix("W_E"),
        lambda: loaded.changed([]),
    ):
        with pytest.raises(DamagedFileError, match=f"{BEST} is damaged"):
            ask()
    assert [one.file for one in loaded.damage()] == [BEST] and qkv.load(good).damage() == ()
    flip(run / MODEL)
    change = f"L0.W_Q=load({run}:L0.W_Q)"
    assert f"{MODEL} is damaged" in said(capsys, "eval", good, "--change", change, status=2)
    change = f"L0.W_Q=load({run / BEST}:L0.W_Q)"
    assert f"{BEST} is damaged" in said(capsys, "eval", good, "--change", change, status=2)


@pytest.mark.parametrize(
    ("harm", "file"),
    [(lambda run: flip(run / MODEL), MODEL), (lambda run: flip(run / BEST), BEST), (another_loss, "telemetry.sqlite"),
     (another_letter, "tokenizer.json")],
    ids=["last", "best", "telemetry", "tokenizer"],
)  # fmt: skip
def test_whatever_shows_says_what_is_not_whole_and_shows_the_rest(run, good, tmp_path, capsys, harm, file):
    whole = {name: said(capsys, *words) for name, words in shows(good, good, tmp_path).items()}
    assert not any("damaged" in text or "Not whole" in text for text in whole.values())
    harm(run)
    for name, words in shows(run, good, tmp_path).items():
        printed = said(capsys, *words)
        assert printed.startswith(f"Not whole: {run / file} is damaged: its bytes are not those"), (name, printed)
        rest = Path(tmp_path / "page.html").read_text("utf-8") if name == "report" else printed
        assert len(rest) > 500 + len(printed.partition("are whole.")[0])
    told = json.loads(said(capsys, "show", run, "--json"))["damaged"]
    assert [one["file"] for one in told] == [file]
    report = read_report(run)
    assert len(report.damaged) == 1 and file in report.damaged[0] and "Not whole" not in whole["report"]


def shows(run: Path, other: Path, out: Path) -> dict[str, list[object]]:
    return {
        "show": ["show", run],
        "compare": ["compare", run, other],
        "report": ["report", run, "--out", out / "page.html"],
    }


def test_of_a_run_whose_telemetry_is_damaged_the_norms_come_from_the_weights(run, good, capsys):
    another_loss(run)
    shown = json.loads(said(capsys, "show", run, "--json"))
    weights = load_file(run / MODEL)
    assert shown["answers"] == [] and set(shown["matrices"]) == set(weights)
    for address, values in weights.items():
        assert shown["matrices"][address]["norm"] == pytest.approx(float(torch.linalg.vector_norm(values.double())))
    matrix = json.loads(said(capsys, "show", run, "L0.W_Q", "--json"))
    assert matrix["norm"] == pytest.approx(shown["matrices"]["L0.W_Q"]["norm"], rel=1e-6) and matrix["measures"] == {}
    assert read_report(run).loss is None and read_report(good).loss is not None
    assert "telemetry.sqlite is damaged" in read_report(run).missing["map"]


def test_two_runs_of_which_one_has_damaged_weights_are_compared_without_them(run, good, capsys):
    flip(run / BEST)
    found = json.loads(said(capsys, "compare", run, good, "--json"))
    assert found["matrices"] == [] and found["figures"]["steps"] == [20, 20]
    assert found["cautions"][0].startswith("The matrices are not compared: ")
    printed = said(capsys, "compare", run, good)
    assert "The matrices are not compared" in printed and "norm in" not in printed


def test_a_damaged_checkpoint_is_refused_where_it_is_asked_for_and_left_out_elsewhere(run, capsys):
    steps = list(RunFolder(run).weights())
    step = steps[1]
    file = run / f"checkpoints/step-{step:08d}/{MODEL}"
    flip(file)
    printed = said(capsys, "show", run, "L0.W_Q", "--at", step, status=2)
    others = ", ".join(str(other) for other in steps if other != step)
    assert f"{file} is damaged" in printed and f"there are weights of step {others} too" in printed
    said(capsys, "show", run, "L0.W_Q", "--at", steps[2])
    report = read_report(run)
    assert report.matrices.steps == tuple(other for other in steps if other != step)
    assert any(str(file) in sentence for sentence in report.damaged)


def test_the_start_of_a_run_is_not_compared_with_where_it_is_damaged(run, capsys):
    flip(run / f"checkpoints/step-00000000/{MODEL}")
    printed = said(capsys, "show", run, "W_E[c]")
    assert printed.startswith("Not whole: ") and "its start was not kept" in printed
    assert json.loads(said(capsys, "show", run, "W_E", "--json")).get("rows") is None


def test_a_run_that_is_whole_is_hashed_once(good, tmp_path, capsys, monkeypatch):
    from qkv.folder import hashes

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(hashes, "QUIET_SECONDS", -1.0)
    hashes._cache.cache_clear()
    words = ["predict", good, "the cat", "--tokens", 4]
    said(capsys, *words)
    hashes._cache.cache_clear()
    monkeypatch.setattr(hashes, "sha256_of", lambda path: pytest.fail(f"{path} was read again"))
    said(capsys, *words)


@pytest.mark.parametrize("kind", ["view", "trigger"])
def test_foreign_sql_in_the_telemetry_is_not_run(run, tmp_path, small_text, capsys, kind):
    """A view whose query does not end, and a trigger; sealed anew, so that every hash agrees."""
    database = sqlite3.connect(run / "telemetry.sqlite")
    if kind == "view":
        database.execute("DROP TABLE events")
        database.execute(
            "CREATE VIEW events AS WITH RECURSIVE t(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM t)"
            " SELECT 0 AS arm, i AS step, '' AS kind, '' AS address, '' AS sentence, '' AS evidence FROM t"
        )
    else:
        database.execute("CREATE TRIGGER spy AFTER INSERT ON sessions BEGIN DELETE FROM steps; END")
    database.commit()
    database.close()
    seal(run)
    assert f"it holds the {kind} " in said(capsys, "verify", run, "--updates", 0, status=1)
    assert "which qkv did not write" in said(capsys, "show", run)
    (run / "manifest.json").unlink()  # as if it had been stopped
    before = (run / "telemetry.sqlite").read_bytes()
    assert "which qkv did not write" in said(capsys, "train", "--out", run, "--resume", status=2)
    assert (run / "telemetry.sqlite").read_bytes() == before


def test_a_name_in_a_state_is_not_followed_out_of_the_run(run, capsys):
    from qkv.folder.verified import state_digest

    place = max((run / "checkpoints").glob("step-*"))
    content = json.loads((place / "state.json").read_text())
    content["files"]["../../../../../../dev/zero"] = "0" * 64  # endless, if it were read
    del content["sha256"]
    (place / "state.json").write_text(json.dumps(content | {"sha256": state_digest(content)}))
    assert "state.json is unreadable" in said(capsys, "verify", run, "--updates", 0, status=1)
    (run / "manifest.json").unlink()
    assert "is damaged (state.json is unreadable) and is passed over" in said(capsys, "train", "--out", run, "--resume")


def test_a_report_is_not_written_through_a_link_of_a_foreign_run(run, tmp_path, capsys):
    (tmp_path / "precious").write_text("precious")
    (run / "report.html").symlink_to(tmp_path / "precious")
    said(capsys, "report", run)
    assert (tmp_path / "precious").read_text() == "precious" and not (run / "report.html").is_symlink()
