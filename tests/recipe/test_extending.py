"""A finished run trained longer: from its last checkpoint, with its optimizer's state, by a schedule that is stated."""

import hashlib
import json
import sys

import pytest

from qkv import api
from qkv.cli import main
from qkv.folder.run_folder import RunFolder
from qkv.recipe import Listening, RunConfig, extend
from qkv.recipe.request import Request
from qkv.training.checkpoint import latest_valid
from qkv.training.schedules import lr_scale

SMALL = ["--tokenizer", "char", "--set", "d_model=16,n_layers=1,n_ctx=16,batch_size=4"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of 30 steps, and the same 20 steps longer; what was said."""
    place = tmp_path_factory.mktemp("extended")
    (place / "text.txt").write_text("the cat sat on the mat and a dog saw the king at sea. " * 60)
    words = [str(place / "text.txt"), *SMALL, "--steps", "30", "--no-report", "--out", str(place / "a"), "--json"]
    assert main(["train", *words]) == 0
    before = content(place / "a")
    said: list[str] = []
    longer = api.train(from_run=str(place / "a"), extend=20, out=place / "b", say=said.append)
    assert content(place / "a") == before  # the run itself is only read
    return place, longer, said


def content(folder):
    return {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}


def test_it_goes_on_from_the_last_checkpoint_with_the_optimizer_and_states_its_schedule(made):
    place, longer, said = made
    assert longer.summary["steps"] == 50 and longer.summary["resumed_from_step"] == 30
    start, end = "step-00000030", "step-00000050"
    for name in ("model.safetensors", "optimizer.safetensors"):
        one, other = ((place / run / "checkpoints" / start / name) for run in "ab")
        assert not other.exists() or one.read_bytes() == other.read_bytes()
    assert (place / "b" / "checkpoints" / start / "model.safetensors").exists()
    assert (place / "b" / "checkpoints" / end / "optimizer.safetensors").exists()
    plan = longer.config.training.schedule
    assert (plan.steps, plan.continues) == (50, 30)
    with longer.telemetry() as telemetry:
        steps = telemetry.steps()
        assert telemetry.fact("extends") == {"run": str(place / "a"), "step": 30}
    assert steps.step.tolist() == list(range(1, 51))
    rate = longer.config.training.optimizer.lr
    later = [(int(s), float(lr)) for s, lr in zip(steps.step, steps.lr, strict=True) if s > 30]
    assert [lr for _, lr in later] == pytest.approx([rate * lr_scale(s - 1, plan) for s, _ in later])
    told = " ".join(said)
    assert f"It continues {place / 'a'} from step 30, with the state of its optimizer." in told
    assert "The new schedule has 20 steps more, to step 50: the learning rate is" in told
    assert "and falls to 0 at the end." in told


def test_an_extended_run_is_whole_and_what_another_run_made_is_not_called_wrong(made):
    verdict = api.verify(made[0] / "b")
    assert verdict.is_whole, verdict
    assert any("up to step 30 were made by another run" in note for check in verdict.checks for note in check.unchecked)


def test_a_killed_extension_goes_on_to_the_same_bytes(made, tmp_path):
    place, longer, _ = made

    class Killed(Exception):
        pass

    def stop(told):
        if getattr(told, "step", 0) == 44:
            raise Killed

    with pytest.raises(Killed):
        api.train(from_run=str(place / "a"), extend=20, out=tmp_path / "c", progress=stop)
    again = api.train(out=tmp_path / "c", resume=True)
    assert again.summary["steps"] == 50
    weights = [latest_valid(RunFolder(path))[0].weights() for path in (place / "b", tmp_path / "c")]
    assert all(values.equal(weights[1][name]) for name, values in weights[0].items())


def test_a_finished_run_resumed_names_the_way(made, capsys):
    assert main(["train", "--out", str(made[0] / "a"), "--resume", "--json"]) == 0
    captured = capsys.readouterr()
    assert f"qkv train --from {made[0] / 'a'} --extend STEPS --out NEW" in captured.err
    assert json.loads(captured.out)["steps"] == 30


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["--extend", "5"], "name it: qkv train --from RUN --extend STEPS"),
        (["--from", "{}", "--extend", "5", "--steps", "9"], "--extend and --steps are two budgets"),
        (["--from", "{}", "--extend", "5", "--seed", "9"], "--seed is 9, but the run was made with 1"),
        (["--from", "{}", "--extend", "0"], "'0' is not a whole number of at least 1"),
        (["--from", "{}", "--extend", "5", "--set", "continues=3"], "continues cannot be set by --set; give --extend"),
        (["--from", "{}", "--extend", "5", "--shard"], "--shard shares weights out among processes, and this is one"),
        (["--from", "{}", "--extend", "5", "--log", "wandb"], "pip install wandb"),
    ],
)
def test_what_does_not_fit_is_one_sentence_and_nothing_is_made(made, words, cause, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    run = str(made[0] / "a")
    assert main(["train", *(word.format(run) for word in words), "--out", str(tmp_path / "new")]) == 2
    assert cause in capsys.readouterr().err and not (tmp_path / "new").exists()


def test_what_may_differ_from_the_run_is_that_of_the_new_one(made, tmp_path):
    asked = Request(from_run=str(made[0] / "a"), extend=2, on_spike="rollback", report=True)
    extend(asked, out=tmp_path / "d", listening=Listening(), cache=None)
    config = RunConfig.read(tmp_path / "d" / "config.toml")
    assert config.report and config.training.on_spike == "rollback"
    assert json.loads((tmp_path / "d" / "manifest.json").read_text())["null"]  # the control, which the run has not


@pytest.mark.parametrize("now", ["", "the cat sat on the mat. " * 90])
def test_data_that_have_changed_leave_nothing_behind(made, now, tmp_path, capsys):
    text = made[0] / "text.txt"
    before = text.read_text()
    try:
        text.write_text(now) if now else text.unlink()
        assert main(["train", "--from", str(made[0] / "a"), "--extend", "5", "--out", str(tmp_path / "new")]) == 2
    finally:
        text.write_text(before)
    assert ("has changed" if now else "text.txt") in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_damaged_run_and_one_that_is_not_finished_are_refused(made, tmp_path, capsys):
    import shutil

    shutil.copytree(made[0] / "a", tmp_path / "a")
    words = ["train", "--from", str(tmp_path / "a"), "--extend", "5", "--out", str(tmp_path / "new")]
    weights = tmp_path / "a" / "checkpoints" / "step-00000030" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\1\2\3\4")
    assert main(words) == 2
    assert "the checkpoint of step 30 is damaged" in capsys.readouterr().err
    (tmp_path / "a" / "manifest.json").unlink()
    assert main(words) == 2
    assert "is not finished; go on with it first" in capsys.readouterr().err and not (tmp_path / "new").exists()
