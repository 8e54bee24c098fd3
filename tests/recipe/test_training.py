"""Whole trainings on small text: the folder that is written, exactness, freezing, budgets, mistakes."""

import dataclasses
import hashlib
import json
import os
import random
import shutil
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import qkv
from qkv import native
from qkv.api import verify
from qkv.errors import ChangeError, ConfigError, Interrupted, NonFiniteError, RunFolderError, UserError
from qkv.kernels.elementwise import ANY_SIZE, UNMEASURED, Kernels
from qkv.recipe import RunConfig
from qkv.recipe.build import Parts
from qkv.telemetry import NULL_ARM, Telemetry
from qkv.training import calibration
from qkv.training.calibration import Choice

SMALL = {"d_model": 16, "n_layers": 2, "n_heads": 2, "n_ctx": 16, "batch_size": 4, "d_mlp": 32}
SUMMARY = (
    "run steps tokens val_loss last_val_loss best_step bits_per_byte train_seconds total_seconds tokens_per_second"
    " parameters stopped_because resumed_from_step baselines"
).split()


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A few kB of sentences that share words."""
    rng = random.Random(0)
    words = "the a cat dog king queen sat ran saw on under mat hill and then while it she he".split()
    path = tmp_path / "small.txt"
    path.write_text(". ".join(" ".join(rng.choice(words) for _ in range(7)) for _ in range(400)), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.api.cache_folder", lambda: tmp_path / "cache")


def train(text: Path, out: Path, **options):
    given = {"tokenizer": "char", "steps": 24, "set": SMALL, "report": False} | options
    return qkv.train(text, out=out, **given)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("steps", [24, 29])
def test_every_light_measure_of_every_matrix_has_a_history_whatever_the_last_step(text, tmp_path, steps):
    from qkv.instruments import LIGHT

    run = train(text, tmp_path / "run", steps=steps)
    for measure in LIGHT:
        found = run.history("**,**.H*.W_*", measure)
        assert {"W_E", "L1.W_out", "L0.H1.W_Q"} <= set(found), measure
        assert len(found["L0.H1.W_Q"].step) > 3 or measure == "second_moment", measure  # Muon keeps none


def test_a_run_folder_is_complete_and_its_summary_has_every_key(text: Path, tmp_path: Path) -> None:
    run = train(text, tmp_path / "run", report=True)
    for name in ("config.toml", "tokenizer.json", "model.safetensors", "best.safetensors", "telemetry.sqlite"):
        assert (run.path / name).stat().st_size > 0
    assert (run.path / "report.html").stat().st_size > 10_000
    manifest = json.loads((run.path / "manifest.json").read_text())
    assert manifest["files"]["report.html"] == digest(run.path / "report.html")
    assert run.folder.damaged_files() == {}
    assert set(SUMMARY) <= set(run.summary)
    assert set(run.summary["baselines"]) == {"unigram", "bigram", "ngram", "ngram_order", "xz"}
    assert run.loss == run.summary["val_loss"] < 3.5


def test_the_last_weights_are_those_that_the_validation_loss_was_measured_on(text: Path, tmp_path: Path) -> None:
    run = train(text, tmp_path / "run")
    last = qkv.load(run.path, weights="last")
    assert last.evaluate().loss == pytest.approx(run.summary["last_val_loss"], abs=1e-6)


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(text: Path, tmp_path: Path) -> None:
    runs = [train(text, tmp_path / f"run{i}", seed=seed) for i, seed in enumerate((5, 5, 6))]
    same, again, other = (digest(run.path / "model.safetensors") for run in runs)
    assert same == again != other


@pytest.mark.parametrize("level", ["off", "full"])
def test_watching_changes_no_byte(text: Path, tmp_path: Path, level: str) -> None:
    light, other = train(text, tmp_path / "light"), train(text, tmp_path / level, watch=level)
    for name in ("model.safetensors", "best.safetensors"):
        assert digest(light.path / name) == digest(other.path / name)


@pytest.mark.parametrize("kind", ["muon", "adamw", "sgd"])
def test_a_frozen_matrix_is_bit_identical_after_training(text: Path, tmp_path: Path, kind: str) -> None:
    decay = {"optimizer.kind": kind, "weight_decay": 0.1}
    run = train(text, tmp_path / "run", freeze=["W_E", "L1.H0.W_V"], set=SMALL | decay)
    start = load_file(run.snapshots()[0])
    end = load_file(run.path / "model.safetensors")
    assert start["W_E"].equal(end["W_E"])
    assert start["L1.W_V"][:, :8].equal(end["L1.W_V"][:, :8])
    assert not start["L1.W_V"][:, 8:].equal(end["L1.W_V"][:, 8:])
    assert not start["L0.W_in"].equal(end["L0.W_in"])


def test_shared_matrices_are_one_in_training_and_after_loading(text: Path, tmp_path: Path) -> None:
    run = train(text, tmp_path / "run", change=["L1.W_K=share(L1.W_Q)"])
    assert "L1.W_K" not in load_file(run.path / "best.safetensors")
    assert run.matrix("L1.H0.W_K").equal(run.matrix("L1.H0.W_Q"))


def test_a_matrix_of_another_run_can_be_loaded_at_a_step(text: Path, tmp_path: Path) -> None:
    first = train(text, tmp_path / "first")
    run = train(text, tmp_path / "second", seed=9, change=[f"W_E=load({first.path}:W_E@8)"], freeze=["W_E"])
    assert run.matrix("W_E").equal(load_file(first.snapshots()[8])["W_E"])


def test_a_run_starts_from_the_best_weights_of_another(text: Path, tmp_path: Path) -> None:
    first = train(text, tmp_path / "first")
    run = qkv.train(text, from_run=str(first.path), steps=2, out=tmp_path / "second", report=False)
    start, best = load_file(run.snapshots()[0]), load_file(first.path / "best.safetensors")
    assert all(start[address].equal(best[address]) for address in best)
    first.path.rename(tmp_path / "moved")
    (replay,) = [check for check in verify(run.path).checks if check.name == "replay"]
    assert f"it started from {first.path}, which is not there any more; put that run back" in replay.unchecked[0]
    (tmp_path / "moved").rename(first.path)
    with pytest.raises(ConfigError, match="leave --preset out"):
        qkv.train(text, from_run=str(first.path), preset="modern", steps=2, out=tmp_path / "third")
    goes_on = dict(from_run=str(first.path), steps=2, report=False)
    dropped = qkv.train(text, set={"dropout": 0.25}, out=tmp_path / "dropped", **goes_on)
    assert dropped.model.config.layout.dropout == 0.25
    with pytest.raises(ConfigError, match="only dropout can be set"):
        qkv.train(text, set={"n_layers": 3}, out=tmp_path / "deeper", **goes_on)


@pytest.fixture
def shared(text: Path, tmp_path: Path):
    """A run of two layers with one W_Q for both, kept as L0.W_Q, and one matrix for the last keys and values."""
    return train(text, tmp_path / "shared", steps=8, change=["L0.W_Q=share(L1.W_Q)", "L1.W_V=share(L1.W_K)"])


def test_a_shared_matrix_of_another_run_can_be_loaded_by_each_name(shared, text: Path, tmp_path: Path) -> None:
    stored = load_file(shared.path / "model.safetensors")
    assert "L1.W_Q" not in stored and "L1.W_V" not in stored
    changes = [f"L0.W_{kind}=load({shared.path}:L1.W_{kind})" for kind in "QV"]
    changes += [f"L1.H1.W_Q=load({shared.path}:L1.H1.W_Q@0)", f"L1.H0.W_V=load({shared.path})"]
    start = load_file(train(text, tmp_path / "run", seed=9, steps=2, change=changes).snapshots()[0])
    assert start["L0.W_Q"].equal(stored["L0.W_Q"]) and start["L0.W_V"].equal(stored["L1.W_K"])
    first = load_file(shared.snapshots()[0])
    assert start["L1.W_Q"][:, 8:].equal(first["L0.W_Q"][:, 8:]) and start["L1.W_V"][:, :8].equal(
        stored["L1.W_K"][:, :8]
    )


def test_a_run_goes_on_from_shared_matrices_as_equal_ones_or_shares_them_again(shared, text, tmp_path, capsys) -> None:
    best, said = load_file(shared.path / "best.safetensors"), []
    goes_on = dict(from_run=str(shared.path), steps=2, report=False, say=said.append)
    apart = qkv.train(text, out=tmp_path / "apart", **goes_on)
    start, end = load_file(apart.snapshots()[0]), load_file(apart.folder.model)
    assert start["L1.W_Q"].equal(best["L0.W_Q"]) and start["L0.W_Q"].equal(best["L0.W_Q"])
    assert start["L1.W_V"].equal(best["L1.W_K"]) and not end["L1.W_V"].equal(end["L1.W_K"])
    expected = "L1.W_Q (one matrix with L0.W_Q there) and 1 more starts as an equal copy and is trained by itself"
    assert any(expected in sentence for sentence in said)
    said.clear()
    one = qkv.train(text, out=tmp_path / "one", change=["L1.W_Q=share(L0.W_Q)", "L1.W_V=share(L1.W_K)"], **goes_on)
    assert set(load_file(one.folder.model)) == set(best) and not any("equal copy" in sentence for sentence in said)
    assert load_file(one.snapshots()[0])["L0.W_Q"].equal(best["L0.W_Q"])


def test_an_unfinished_run_is_loaded_from_by_its_steps(text: Path, tmp_path: Path) -> None:
    first = train(text, tmp_path / "first", steps=4)
    first.folder.model.unlink()
    with pytest.raises(ChangeError, match=r"first is not finished; name a step whose weights it has \(0, .*as load\("):
        train(text, tmp_path / "second", steps=2, change=[f"W_E=load({first.path}:W_E)"])


def test_a_target_loss_ends_the_run(text: Path, tmp_path: Path) -> None:
    run = train(text, tmp_path / "run", until_loss=2.9, steps=400)
    assert run.summary["stopped_because"] == "loss"
    assert run.summary["val_loss"] <= 2.9
    assert run.summary["steps"] < 400


def test_minutes_are_the_wall_time_of_the_whole_command(text: Path, tmp_path: Path) -> None:
    began = time.monotonic()
    run = train(text, tmp_path / "run", steps=None, minutes=0.2)
    assert run.summary["stopped_because"] == "minutes"
    assert time.monotonic() - began < 24  # twice that, wherever it runs
    assert run.summary["steps"] > 2


def test_the_null_is_recorded_beside_the_run_at_equal_steps(text: Path, tmp_path: Path) -> None:
    run = train(text, tmp_path / "run", steps=120, report=True)
    with run.telemetry() as telemetry:
        assert len(telemetry.steps(1).step) == 8  # the largest power of two within 7 % of 120
        pairs = telemetry.against_null("drift")
    assert pairs and all(pair.step == 8 for pair in pairs)


@pytest.mark.parametrize("task", ["causal", "masked"])
def test_kill_at_any_moment_and_resume_gives_the_same_bytes(text: Path, killed_and_resumed, task: str) -> None:
    options = ["--tokenizer", "word", "--task", task, "--steps", "300", "--no-report", "--on-spike", "ignore"]
    options += ["--set", ",".join(f"{name}={value}" for name, value in SMALL.items())]
    whole, killed = killed_and_resumed(str(text), *options)
    for name in ("model.safetensors", "best.safetensors"):
        assert digest(whole / name) == digest(killed / name)
    with qkv.load(whole).telemetry() as a, qkv.load(killed).telemetry() as b:
        assert a.samples() == b.samples() and len(a.samples()) > 1
        assert [(e.step, e.loss) for e in a.evaluations()] == [(e.step, e.loss) for e in b.evaluations()]


def test_resuming_a_finished_run_changes_nothing(text: Path, tmp_path: Path) -> None:
    run, said = train(text, tmp_path / "run"), []
    before = {path: digest(path) for path in run.path.rglob("*") if path.is_file()}
    qkv.train(out=run.path, resume=True, say=said.append)
    assert any("finished" in sentence for sentence in said)
    after = {path: digest(path) for path in run.path.rglob("*") if path.is_file() and path.name != "report.html"}
    assert {p: d for p, d in after.items() if p.name != "manifest.json"} == {
        p: d for p, d in before.items() if p.name != "manifest.json"
    }


def test_resuming_with_another_option_names_both(text: Path, tmp_path: Path) -> None:
    run = train(text, tmp_path / "run")
    with pytest.raises(ConfigError, match="--seed is 7, but the run was made with 1"):
        qkv.train(out=run.path, resume=True, seed=7)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"freeze": ["W_NOPE"]}, UserError, "W_NOPE"),
        ({"change": ["W_E=nonsense"]}, ChangeError, "nonsense"),
        ({"change": ["L0.W_in=identity"]}, ChangeError, "identity"),
        ({"set": SMALL | {"nonsense.key": 1}}, ConfigError, "nonsense"),
        ({"preset": "bert"}, ConfigError, "masked"),
        ({"task": "nonsense"}, ConfigError, "nonsense"),
        ({"tokenizer": "nonsense"}, ConfigError, "nonsense"),
        ({"minutes": 1.0}, ConfigError, "two budgets"),
        ({"watch": "loud"}, ConfigError, "loud"),
    ],
)
def test_a_mistake_is_explained_and_makes_no_folder(text: Path, tmp_path: Path, options, error, words: str) -> None:
    with pytest.raises(error, match=words):
        train(text, tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_exists_is_left_alone(text: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text("x")
    with pytest.raises(RunFolderError, match="--resume"):
        train(text, tmp_path / "run")
    assert (tmp_path / "run" / "config.toml").read_text() == "x"


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_checkpoint(text: Path, tmp_path: Path) -> None:
    from qkv.errors import NonFiniteError

    wild = SMALL | {"optimizer.kind": "sgd", "lr": 1e30, "clip": 0}
    with pytest.raises(NonFiniteError, match=r"at step \d+; .*try a lower learning rate \(--set lr=\.\.\.\)"):
        train(text, tmp_path / "run", set=wild)
    weights = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.isfinite(values).all() for values in weights.values())


def test_data_that_changed_is_refused_on_resume(text: Path, tmp_path: Path) -> None:
    run = train(text, tmp_path / "run")
    (run.path / "manifest.json").unlink()
    text.write_text(text.read_text() + " more words", encoding="utf-8")
    with pytest.raises(RunFolderError, match="has changed"):
        qkv.train(out=run.path, resume=True)


@pytest.mark.parametrize("written", ["config.toml", "config.toml tokenizer.json"])
def test_a_run_that_was_killed_between_its_first_files_goes_on(text: Path, tmp_path: Path, written: str) -> None:
    whole = train(text, tmp_path / "whole")
    begun = tmp_path / "begun"
    begun.mkdir()
    for name in written.split():
        shutil.copy(whole.path / name, begun)
    made = qkv.train(out=begun, resume=True, report=False)
    assert digest(made.path / "model.safetensors") == digest(whole.path / "model.safetensors")
    for name in ("source.json", "tokenizer.json"):
        assert (begun / name).read_bytes() == (whole.path / name).read_bytes()


def test_a_taken_folder_is_noticed_before_the_text_is_read(tmp_path, monkeypatch):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "letter.txt").write_text("mine")
    monkeypatch.setattr("qkv.recipe.training.resolve", lambda *_: pytest.fail("the text was read first"))
    with pytest.raises(RunFolderError, match="already exists"):
        qkv.train("x.txt", out=tmp_path / "taken")
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["letter.txt"]


class _Stop(Exception):
    pass


def begun(text: Path, out: Path, at: int, **options) -> Path:
    """A run whose process was lost after `at` updates."""

    def progress(told) -> None:
        if getattr(told, "step", 0) >= at and hasattr(told, "lr"):
            raise _Stop

    with pytest.raises(_Stop):
        train(text, out, progress=progress, **options)
    return out


def test_a_resumed_run_stops_the_same_gradients(text, tmp_path) -> None:
    options = {"change": ["L0.v=stop_gradient", "L1.H1.q,L1.resid_pre=stop_gradient@10..21"], "watch": "full"}
    whole = train(text, tmp_path / "whole", **options)
    resumed = qkv.train(out=begun(text, tmp_path / "resumed", 18, **options), resume=True, report=False)
    assert resumed.summary["resumed_from_step"] == 16
    assert digest(resumed.folder.model) == digest(whole.folder.model)
    grads = whole.history("L0.W_V", "grad_norm")["L0.W_V"]
    assert not grads.value[grads.step > 0].any() and len(grads.value) > 5
    seen = whole.history("W_E", "grad_norm")["W_E"]
    assert {bool(value) for step, value in zip(seen.step, seen.value, strict=True) if 11 <= step <= 21} == {False}
    assert verify(whole.path, updates=None).is_whole


@pytest.mark.skipif(native.load("vectors") is None, reason=native.why_not("vectors"))
def test_a_run_keeps_the_kernels_that_it_began_with(text, tmp_path, monkeypatch) -> None:
    """What is measured on a machine decides bits: resume, replay and a null take what the run has written down."""
    ours, torchs = Kernels(**dict.fromkeys(("product", "activated", "gradient", "keys"), ANY_SIZE)), Kernels()
    options = {"precision": "fp32", "set": SMALL | {"d_model": 64, "d_mlp": 256}}

    def measured(kernels: Kernels) -> None:
        monkeypatch.setattr(calibration, "choice", lambda dtype: Choice(True, kernels))

    measured(ours)
    whole = train(text, tmp_path / "whole", **options)
    cut = begun(text, tmp_path / "cut", 18, **options)
    measured(torchs)
    other = train(text, tmp_path / "other", **options)
    assert digest(other.folder.model) != digest(whole.folder.model)  # so the two are told apart
    resumed = qkv.train(out=cut, resume=True, report=False)
    assert resumed.summary["resumed_from_step"] == 16
    assert digest(resumed.folder.model) == digest(whole.folder.model)
    for run, kernels in ((whole, ours), (resumed, ours), (other, torchs)):
        assert RunConfig.read(run.folder.config).machine.kernels == kernels
        assert run.folder.read_manifest()["kernels"] == dataclasses.asdict(kernels)
        found = verify(run.path, updates=None)
        assert found.is_whole and "bit for bit" in str(found)


@pytest.mark.skipif(native.load("vectors") is None, reason=native.why_not("vectors"))
def test_a_run_from_before_kernels_were_written_down_keeps_those_of_then(text, tmp_path, monkeypatch) -> None:
    options = {"precision": "fp32", "set": SMALL | {"d_model": 64, "d_mlp": 256}}
    monkeypatch.setattr(calibration, "choice", lambda dtype: Choice(True, UNMEASURED[dtype]))
    whole = train(text, tmp_path / "whole", **options)
    cut = begun(text, tmp_path / "cut", 18, **options)
    table = (cut / "config.toml").read_text()
    before, after = table.split("[machine.kernels]")
    (cut / "config.toml").write_text(before + after[after.index("[") :])
    assert RunConfig.read(cut / "config.toml").machine.kernels is None
    monkeypatch.setattr(calibration, "choice", lambda dtype: Choice(True, Kernels()))
    assert digest(qkv.train(out=cut, resume=True, report=False).folder.model) == digest(whole.folder.model)


def test_passes_that_are_slower_on_a_processor_are_left_out_without_a_word(text, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(calibration, "choice", lambda dtype: Choice(False, Kernels()))
    heard: list[str] = []
    run = train(text, tmp_path / "run", steps=2, precision="fp32", say=heard.append)
    assert not RunConfig.read(run.folder.config).machine.native
    assert not [sentence for sentence in heard if "Passes" in sentence]


@pytest.mark.parametrize("change", ["L0.W_[QK]=identity", "W_E=orthogonal", "L1.W_V=scale(0.5)"])
def test_drift_of_a_resumed_run_is_measured_from_what_changes_made_of_the_start(text, tmp_path, change) -> None:
    options = {"change": [change], "set": SMALL | {"n_heads": 1}, "watch": "full"}
    whole = train(text, tmp_path / "whole", **options)
    resumed = qkv.train(out=begun(text, tmp_path / "resumed", 20, **options), resume=True, report=False)
    assert resumed.summary["resumed_from_step"] == 16
    for measure in ("drift", "turn", "rotation"):
        one, two = (run.history("**,**.H*.*", measure) for run in (whole, resumed))
        assert one.keys() == two.keys()
        for address in one:
            assert one[address].value.tolist() == pytest.approx(two[address].value.tolist(), nan_ok=True), address
    if "identity" in change:
        assert not resumed.history("L0.W_Q", "drift")["L0.W_Q"].value.any()


def test_a_run_goes_on_under_its_own_tokenizer(text: Path, tmp_path: Path) -> None:
    given = tmp_path / "given.json"
    shutil.copy(train(text, tmp_path / "first", tokenizer="word", vocab=60).path / "tokenizer.json", given)
    whole = train(text, tmp_path / "whole", tokenizer=str(given))
    cut = begun(text, tmp_path / "cut", 20, tokenizer=str(given))
    given.write_text((train(text, tmp_path / "other").path / "tokenizer.json").read_text(encoding="utf-8"))
    assert digest(qkv.train(out=cut, resume=True, report=False).path / "model.safetensors") == digest(
        whole.path / "model.safetensors"
    )
    given.unlink()
    assert qkv.load(cut).evaluate().loss == pytest.approx(whole.summary["val_loss"], abs=1e-6)


def test_a_run_is_evaluated_on_its_own_text_or_not_at_all(text: Path, tmp_path: Path) -> None:
    run = train(text, tmp_path / "run", tokenizer="word", vocab=60)
    loss = run.evaluate().loss
    assert loss == pytest.approx(run.summary["val_loss"], abs=1e-6)
    text.write_text("Z " * 4000 + text.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(RunFolderError, match="has changed"):
        qkv.load(run.path).evaluate()


@pytest.mark.skipif(sys.platform != "linux", reason="only there are names bytes")
def test_a_name_that_is_no_text_is_refused_before_anything_is_made(text: Path, tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"caf\xe9.txt")
    shutil.copy(text, odd)
    with pytest.raises(ConfigError, match="0xe9"):
        train(odd, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.move(odd, folder / odd.name)
    assert train(folder, tmp_path / "run").summary["steps"] == 24


def test_what_follows_a_training_can_be_stopped_and_made_later(text: Path, tmp_path: Path, monkeypatch) -> None:
    def stopped(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("qkv.recipe.training.write_samples", stopped)
        with pytest.raises(Interrupted, match="is done and kept.*--resume") as caught:
            train(text, tmp_path / "run")
    assert caught.value.exit_status == 130
    assert qkv.train(out=tmp_path / "run", resume=True, report=False).summary["steps"] == 24


def test_resume_names_another_parent(text: Path, tmp_path: Path) -> None:
    run = train(text, tmp_path / "run")
    with pytest.raises(ConfigError, match="--from is .*, but the run was made with none"):
        qkv.train(out=run.path, resume=True, from_run=str(run.path))


def test_a_device_that_is_not_here_is_said_on_resume(text: Path, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    cut = begun(text, tmp_path / "cut", 20)
    config = (cut / "config.toml").read_text(encoding="utf-8")
    (cut / "config.toml").write_text(config.replace('device = "cpu"', 'device = "cuda"'), encoding="utf-8")
    with pytest.raises(ConfigError, match="there is no cuda device here"):
        qkv.train(out=cut, resume=True)


def test_a_size_means_the_same_under_every_name(text: Path, tmp_path: Path) -> None:
    short, long = (
        train(text, tmp_path / name.replace(".", ""), set={name: 48}, steps=1).config.model.sizes
        for name in ("d_model", "sizes.d_model")
    )
    assert short == long and short.d_model == 48


def test_other_data_may_have_other_columns(text: Path, tmp_path: Path) -> None:
    lines = text.read_text(encoding="utf-8").split(". ")
    for name, header in (("one.csv", "review,stars"), ("two.csv", "opinion,stars")):
        (tmp_path / name).write_text("\n".join([header, *(f"{line},{i % 5}" for i, line in enumerate(lines))]))
    run = train(tmp_path / "one.csv", tmp_path / "run", text_column="review")
    assert run.evaluate(tmp_path / "two.csv").loss == pytest.approx(run.evaluate(tmp_path / "one.csv").loss)
    assert run.evaluate(text).loss > 0


def test_a_run_that_ends_before_its_horizon_is_known_is_sealed_with_its_null(text, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("qkv.recipe.null.null_steps", lambda steps, share: steps)
    options = {"steps": None, "minutes": 5, "until_loss": 100}
    run = train(text, tmp_path / "run", report=True, change=["W_E=zero@500.."], **options)
    assert (run.summary["stopped_because"], run.summary["steps"]) == ("loss", 1)
    with run.telemetry() as telemetry:
        assert len(telemetry.steps(1).step) == 1


def test_a_training_that_is_done_does_without_a_null_that_cannot_be_made(text, tmp_path, monkeypatch) -> None:
    def lost(parts: Parts, trained=Parts.train, **how):
        if how.get("random_labels"):
            raise NonFiniteError("the loss is nan at step 3")
        return trained(parts, **how)

    said: list[str] = []
    monkeypatch.setattr(Parts, "train", lost)
    run = train(text, tmp_path / "run", report=True, say=said.append)
    assert (
        run.folder.is_finished
        and "This run has no random-label control" in " ".join(said)
        and "nan at step 3" in " ".join(said)
    )
    with run.telemetry() as telemetry:
        assert not len(telemetry.steps(1).step) and not telemetry.against_null("drift")
    monkeypatch.undo()
    assert qkv.load(run.path).report(tmp_path / "again.html").is_file()


@pytest.mark.parametrize(("share", "steps"), [(0.3, 4), (1, 24), (0, 0)])
def test_the_control_takes_its_share_of_the_run_and_the_manifest_says_what_it_is(text, tmp_path, share, steps) -> None:
    run = train(text, tmp_path / "run", report=True, set=SMALL | {"control_share": share})
    kind = {"labels": "uniform", "steps": steps} if steps else {}
    assert run.folder.read_manifest()["null"] == kind
    with run.telemetry() as telemetry:
        assert telemetry.fact("null", {}) == kind
        assert telemetry.steps(NULL_ARM).step.tolist() == list(range(1, steps + 1))
        assert {pair.step for pair in telemetry.against_null("drift")} == ({steps} if steps else set())
    page = run.folder.report.read_text(encoding="utf-8")
    assert (page.count("labels drawn uniformly at every step") > 1) == bool(steps)  # once, by the glossary


def test_a_share_below_zero_is_refused(text, tmp_path) -> None:
    with pytest.raises(ConfigError, match="control_share is -1; expected a share of 0 or more"):
        train(text, tmp_path / "run", set=SMALL | {"control_share": -1})
    assert not (tmp_path / "run").exists()


def test_what_a_run_started_from_may_be_gone_once_it_has_begun(text: Path, tmp_path: Path) -> None:
    first = train(text, tmp_path / "first")
    table = tmp_path / "table.safetensors"
    shutil.copy(first.folder.model, table)
    options = {"from_run": str(first.path), "tokenizer": None, "set": {"batch_size": 4}}
    options |= {"change": [f"L0.W_Q=load({table}:L0.W_K)"], "report": True}
    whole = train(text, tmp_path / "whole", **options)
    begun(text, tmp_path / "resumed", 18, **options)

    def gone(told) -> None:
        if getattr(told, "step", 0) == 20 and first.path.exists():
            first.path.rename(tmp_path / "elsewhere")
            table.unlink()

    left = train(text, tmp_path / "left", progress=gone, **options)
    assert not table.exists()
    resumed = qkv.train(out=tmp_path / "resumed", resume=True)
    assert resumed.summary["resumed_from_step"] == 16
    for run in (left, resumed):
        assert digest(run.folder.model) == digest(whole.folder.model)
        for measure in ("drift", "norm"):
            ours, theirs = (each.telemetry() for each in (run, whole))
            with ours, theirs:
                assert ours.against_null(measure) == theirs.against_null(measure) != []


def test_a_resume_writes_a_report_where_the_start_asked_for_one(text, tmp_path) -> None:
    """What was asked is in config.toml; typed beside --resume it may be otherwise."""
    for name, at_start, typed, wanted in (
        ("neither", False, None, False),
        ("asked for", False, True, True),
        ("as ever", True, None, True),
        ("given up", True, False, False),
    ):
        cut = begun(text, tmp_path / name, 20, report=at_start)
        run = qkv.train(out=cut, resume=True, report=typed)
        assert (run.folder.report.is_file(), run.config.report) == (wanted, wanted), name
        with Telemetry(run.folder.telemetry) as telemetry:
            assert (telemetry.last_step(NULL_ARM) == 1) == wanted, name
    finished = tmp_path / "neither"
    assert not qkv.train(out=finished, resume=True).folder.report.is_file()
    assert qkv.train(out=finished, resume=True, report=True).folder.report.is_file()
