"""Whole trainings of what stands beside a Transformer: LSTM and bag, on text, labels and images."""

import json
from pathlib import Path

import pytest

import qkv
from qkv import cli
from qkv.errors import ConfigError, UserError
from qkv.models.matrices import Catalogue

SMALL = ["--tokenizer", "char", "--set", "d_model=16,n_ctx=32", "--threads", "1", "--steps", "24"]
LSTM = {"W_E", "L0.W_ih", "L0.W_hh", "L0.b_ih", "L1.W_ih", "L1.W_hh", "L1.b_ih", "W_U"}


def said(capsys, *words: object, status: int = 0) -> str:
    capsys.readouterr()
    got = cli.main([str(word) for word in words])
    out, err = capsys.readouterr()
    assert got == status, err
    return out if not status else err


@pytest.fixture(scope="module")
def runs(tmp_path_factory, small_text) -> dict[str, Path]:
    folder, runs = tmp_path_factory.mktemp("runs"), {}
    for name, more in {"lstm": (), "bag": ("--no-report",), "other": ("--seed", "2", "--no-report")}.items():
        preset = "lstm" if name == "other" else name
        runs[name] = folder / name
        words = ["train", str(small_text), *SMALL, "--preset", preset, "--out", str(runs[name]), *more, "--json"]
        assert cli.main(words) == 0
    return runs


def test_every_matrix_of_an_lstm_shows_in_report_show_and_compare(runs, capsys):
    assert set(Catalogue(qkv.load(runs["lstm"]).model).addresses) == LSTM
    shown = said(capsys, "show", runs["lstm"], "--all")
    for address in LSTM:
        assert address in shown
    one = said(capsys, "show", runs["lstm"], "L1.W_hh")
    assert "16 x 64" in one and "drift" in one
    compared = said(capsys, "compare", runs["lstm"], runs["other"])
    assert all(address in compared for address in LSTM)
    report = (runs["lstm"] / "report.html").read_text(encoding="utf-8")
    assert all(address in report for address in LSTM)
    assert "this model has no attention to show: its positions read one another through an LSTM" in report


def test_what_is_about_attention_says_that_there_is_none(runs, capsys):
    shown = said(capsys, "show", runs["lstm"], "--text", "the cat sees")
    assert "This model has no attention: there are no heads to show." in shown
    assert "mix" in shown and "L0.resid_pre" in shown
    assert "W_Q" not in shown
    error = said(capsys, "show", runs["lstm"], "L0.W_Q", status=2)
    assert error.count("\n") == 1 and "L0.W_Q" in error
    with pytest.raises(UserError, match="no attention to show"):
        qkv.load(runs["bag"]).attention("the cat")
    with pytest.raises(UserError, match="no attention to show"):
        qkv.load(runs["lstm"]).what_moved("the cat", 0, 24)


def test_step_embed_predict_and_eval_take_them(runs, capsys):
    for name in ("lstm", "bag"):
        assert "L1." in said(capsys, "step", runs[name], "the cat sees a dog")
        assert json.loads(said(capsys, "embed", runs[name], "the cat", "--json"))["outputs"]
        written = json.loads(said(capsys, "predict", runs[name], "the cat", "--tokens", "40", "--json"))
        assert len(written["outputs"][0]) == 40  # longer than the context
        assert json.loads(said(capsys, "eval", runs[name], "--json"))["loss"] > 0


def test_a_resumed_lstm_ends_with_the_bytes_of_the_undisturbed_one(runs, small_text, tmp_path, monkeypatch):
    out = tmp_path / "r"
    words = ["train", str(small_text), *SMALL, "--preset", "lstm", "--no-report", "--out", str(out), "--json"]

    from qkv.training import checkpoint

    real, seen = checkpoint.Checkpoints.save, []

    def dies(self, *args, **kwargs):
        real(self, *args, **kwargs)
        seen.append(1)
        if len(seen) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint.Checkpoints, "save", dies)
    cli.main(words)
    monkeypatch.setattr(checkpoint.Checkpoints, "save", real)
    assert cli.main(["train", "--out", str(out), "--resume", "--json"]) == 0
    assert (out / "model.safetensors").read_bytes() == (runs["lstm"] / "model.safetensors").read_bytes()


def test_an_lstm_fills_masks_and_tells_labels_and_images(small_text, tmp_path, capsys):
    masked = ["--task", "masked", "--preset", "lstm", "--no-report", "--out", tmp_path / "m", "--json"]
    found = json.loads(said(capsys, "train", small_text, *SMALL, *masked))
    assert found["val_loss"] > 0
    back = set(Catalogue(qkv.load(tmp_path / "m").model).addresses)
    assert {"L0.W_ih", "L0.W_ih_back", "L1.W_hh_back"} <= back


def test_parameters_are_matched_on_request(small_text, tmp_path, capsys):
    words = ("train", small_text, "--tokenizer", "char", "--steps", 1, "--no-report", "--watch", "off", "--json")
    for preset in ("lstm", "bag", "modern"):
        out = tmp_path / preset
        found = json.loads(said(capsys, *words, "--preset", preset, "--parameters", 60_000, "--out", out))
        assert found["parameters"] == pytest.approx(60_000, rel=0.35 if preset == "modern" else 0.06)
    error = said(capsys, *words, "--parameters", 60_000, "--set", "d_model=8", "--out", tmp_path / "x", status=2)
    assert "--parameters chooses d_model" in error and not (tmp_path / "x").exists()
    with pytest.raises(ConfigError, match="--parameters is 9000, but the run was made with"):
        qkv.train(resume=True, out=tmp_path / "lstm", parameters=9000)
