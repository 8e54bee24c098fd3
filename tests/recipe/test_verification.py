"""`verify`: a whole run is called whole, every kind of damage is found and named, and nothing else is called damage."""

import hashlib
import json
import random
import shutil
import sqlite3
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import qkv
from qkv import cli
from qkv.api import verify
from qkv.errors import RunFolderError
from qkv.folder.run_folder import RunFolder
from qkv.recipe.audit.verdict import Verdict
from qkv.training import checkpoint as checkpoints

SMALL = {"d_model": 16, "n_layers": 2, "n_heads": 2, "n_ctx": 16, "batch_size": 4, "d_mlp": 32}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few kB of sentences that share words."""
    rng = random.Random(0)
    words = "the a cat dog king queen sat ran saw on under mat hill and then while it she he".split()
    path = tmp_path_factory.mktemp("verify") / "small.txt"
    path.write_text(". ".join(" ".join(rng.choice(words) for _ in range(7)) for _ in range(400)), encoding="utf-8")
    return path


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory):
    patch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("cache")
    patch.setattr("qkv.api.cache_folder", lambda: folder)
    yield
    patch.undo()


def train(text: Path, out: Path, **options):
    return qkv.train(text, out=out, **{"tokenizer": "char", "steps": 40, "set": SMALL, "report": False, **options})


@pytest.fixture(scope="module")
def made(text: Path) -> Path:
    """One finished run, watched in full."""
    return train(text, text.parent / "run", watch="full").path


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


def digests(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in folder.rglob("*")
        if p.is_file() and not p.name.endswith(("-shm", "-wal"))
    }


def sealed_again(folder: Path) -> None:
    """Make the manifest agree with whatever the files are now, as somebody would who hides what he did."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in manifest["files"]:
        manifest["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    RunFolder(folder).write_manifest(manifest)


def check(verdict: Verdict, name: str):
    return next(one for one in verdict.checks if one.name == name)


def test_a_whole_run_is_whole_and_is_not_touched(made: Path) -> None:
    before = digests(made)
    verdict = verify(made)
    assert verdict.is_whole and [one.name for one in verdict.checks] == ["files", "checkpoints", "telemetry", "replay"]
    assert all(one.compared and not one.unchecked for one in verdict.checks)
    assert check(verdict, "replay").compared == 40
    assert check(verdict, "telemetry").compared > 500
    assert digests(made) == before


def test_segments_begin_at_the_start_and_at_the_checkpoint_before_the_newest(made: Path) -> None:
    replay = check(verify(made, updates=8), "replay")
    assert not replay.faults and replay.compared == 16 and "(0 to 8 and 32 to 40)" in replay.what


@pytest.mark.parametrize(
    "options",
    [
        {"set": SMALL | {"optimizer.kind": "adamw", "dropout": 0.2}},
        {"set": SMALL | {"optimizer.kind": "sgd", "weight_decay": 0.1}},
        {"task": "masked", "tokenizer": "word", "watch": "off"},
        {"change": ["L1.W_K=share(L1.W_Q)", "L0.W_V=scale(0.5)@9..", "W_E=freeze@3..20"], "freeze": ["L1.H0.W_V"]},
        {"steps": None, "minutes": 0.25},
        {"until_loss": 2.7, "steps": 60},
    ],
    ids=["adamw", "sgd", "masked", "changes", "minutes", "target"],
)
def test_every_update_of_a_run_is_made_again_bit_for_bit(text: Path, tmp_path: Path, options: dict) -> None:
    run = train(text, tmp_path / "run", **options)
    verdict = verify(run.path, updates=None)
    assert verdict.is_whole, [str(fault) for fault in verdict.faults]
    assert check(verdict, "replay").compared == run.summary["steps"]
    assert check(verdict, "replay").unchecked == ()


def test_a_run_that_went_beyond_its_plan_for_a_target_is_made_again(text: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("qkv.training.schedules._FIRST_LOOK_SECONDS", 0.0)
    settings = SMALL | {"schedule.most_steps": 30}
    run = train(text, tmp_path / "run", steps=None, minutes=2.0, until_loss=1.3, set=settings)
    assert run.summary["stopped_because"] == "loss" and run.summary["horizon"] == 30
    assert run.summary["steps"] > 38, "the third decay or a later one: of them few rates agree by chance"
    verdict = verify(run.path, updates=None)
    assert verdict.is_whole, [str(fault) for fault in verdict.faults]
    assert (check(verdict, "replay").compared, check(verdict, "replay").unchecked) == (run.summary["steps"], ())
    page = run.report().read_text(encoding="utf-8")
    assert "--minutes 2 --until-loss 1.3" in page and "--steps 30" not in page


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("cpu", "another", "its values are not those that it was written with"),
        ("sha256", "", "it holds no hash of its own values"),
        ("sha256", None, "it holds no hash of its own values"),
    ],
)
def test_facts_that_nothing_else_repeats_are_held_by_the_manifest_itself(copy: Path, name, value, said) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest = {key: of for key, of in manifest.items() if key != name} | ({} if value is None else {name: value})
    (copy / "manifest.json").write_text(json.dumps(manifest))
    (fault,) = verify(copy, updates=0).faults
    assert fault.file == "manifest.json" and said in fault.sentence
    RunFolder(copy).note_hash("report.html", "0" * 64)  # as a new report would: it does not vouch for the rest
    (copy / "tokenizer.json").unlink()
    assert {fault.file for fault in verify(copy, updates=0).faults} >= {"manifest.json", "tokenizer.json"}


@pytest.mark.parametrize(
    "name", ["config.toml", "tokenizer.json", "model.safetensors", "best.safetensors", "telemetry.sqlite"]
)
@pytest.mark.parametrize("damage", ["altered", "truncated", "missing"])
def test_a_damaged_final_file_is_named(copy: Path, name: str, damage: str) -> None:
    path = copy / name
    data = bytearray(path.read_bytes())
    path.unlink()  # the weights are hard links to those of a checkpoint
    if damage == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "altered":
        data[-3] ^= 1
        path.write_bytes(data)
    if name == "config.toml" and damage == "missing":
        with pytest.raises(RunFolderError, match="no config.toml"):
            verify(copy, updates=0)
        return
    verdict = verify(copy, updates=0)
    assert name in {fault.file for fault in check(verdict, "files").faults}


@pytest.mark.parametrize("name", ["model.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_named_with_its_step(copy: Path, name: str) -> None:
    path = copy / "checkpoints" / "step-00000016" / name
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(data)
    verdict = verify(copy, updates=0)
    assert [(fault.step, "step-00000016" in fault.file) for fault in verdict.faults] == [(16, True)]


def test_a_folder_of_an_impossible_step_is_told_at_once(copy: Path) -> None:
    (copy / "checkpoints/step-99999999999999").mkdir()  # every step up to it would take hours to look for
    assert verify(copy, updates=0).faults


def test_a_snapshot_that_was_taken_away_is_missed(copy: Path) -> None:
    shutil.rmtree(copy / "checkpoints" / "step-00000008")
    (fault,) = verify(copy, updates=0).faults
    assert fault.step == 8 and "missing" in fault.sentence


def altered_weight(folder: Path, step: int, address: str) -> None:
    """One bit of one weight, with every hash made to agree."""
    path = folder / "checkpoints" / f"step-{step:08d}"
    weights = load_file(path / "model.safetensors")
    flat = weights[address].view(-1)
    flat[3] = flat[3] * (1 + 2**-23)
    (path / "model.safetensors").unlink()
    save_file(weights, path / "model.safetensors")
    state, files = checkpoints._read_state(path)
    files["model.safetensors"] = hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()
    (path / "state.json").write_bytes(checkpoints._state_json(state, files))
    sealed_again(folder)


@pytest.mark.parametrize("step", [8, 32])
def test_one_bit_of_one_weight_is_found_by_replay_though_all_hashes_agree(copy: Path, step: int) -> None:
    altered_weight(copy, step, "L1.W_in")
    assert verify(copy, updates=0).is_whole
    verdict = verify(copy)
    named = {(fault.step, fault.address) for fault in verdict.faults if "safetensors" in fault.file}
    assert named == {(step, "L1.W_in")}


def test_another_start_is_found(copy: Path) -> None:
    altered_weight(copy, 0, "L0.W_V")
    verdict = verify(copy)
    assert (0, "L0.W_V") in {(fault.step, fault.address) for fault in verdict.faults}


@pytest.mark.parametrize(
    ("statement", "step", "address", "updates"),
    [
        ("UPDATE measurements SET value = value * 1.00001 WHERE step = 16 AND arm = 0 AND measure = "
         "(SELECT id FROM measures WHERE name = 'norm') AND address = (SELECT id FROM addresses WHERE address = "
         "'L1.W_O')", 16, "L1.W_O", 0),
        ("UPDATE measurements SET value = value * 1.00001 WHERE step = 32 AND arm = 0 AND measure = "
         "(SELECT id FROM measures WHERE name = 'spectral_norm') AND address = (SELECT id FROM addresses WHERE "
         "address = 'L0.H1.QK')", 32, "L0.H1.QK", 0),
        ("UPDATE measurements SET value = value * (1 + 1e-15) WHERE step = 7 AND arm = 0 AND measure = "
         "(SELECT id FROM measures WHERE name = 'grad_norm') AND address = (SELECT id FROM addresses WHERE address = "
         "'L0.W_Q')", 7, "L0.W_Q", 256),
        ("UPDATE steps SET loss = loss * (1 + 1e-15) WHERE step = 5 AND arm = 0", 5, "", 256),
        ("DELETE FROM steps WHERE step = 12 AND arm = 0", 12, "", 0),
        ("UPDATE steps SET tokens = tokens + 1 WHERE step = 32 AND arm = 0", 32, "", 0),
        ("UPDATE evaluations SET loss = loss - 0.01 WHERE arm = 0 AND step = 40", 40, "", 0),
    ],
    ids=["norm", "circuit", "gradient", "loss", "gap", "tokens", "validation"],
)  # fmt: skip
def test_a_number_that_was_changed_is_found_at_its_step_and_matrix(
    copy: Path, statement: str, step: int, address: str, updates: int
) -> None:
    with sqlite3.connect(copy / "telemetry.sqlite") as database:
        assert database.execute(statement).rowcount == 1
    database.close()
    sealed_again(copy)
    faults = verify(copy, updates=updates).faults
    assert faults and all(fault.file == "telemetry.sqlite" for fault in faults)
    assert (step, address) in {(fault.step, fault.address) for fault in faults}


def test_what_an_older_version_measured_by_another_formula_is_not_called_damaged(copy: Path) -> None:
    with sqlite3.connect(copy / "telemetry.sqlite") as database:
        database.execute("UPDATE measures SET formula = 'another' WHERE name = 'drift'")
        database.execute(
            "UPDATE measurements SET value = value * 2 WHERE step = 16 AND arm = 0 AND measure = "
            "(SELECT id FROM measures WHERE name = 'drift')"
        )
    database.close()
    sealed_again(copy)
    told = check(verify(copy, updates=0), "telemetry")
    assert not told.faults and told.unchecked == ("drift was recorded by another formula than today's",)


def test_a_run_that_is_not_finished_is_not_called_damaged(copy: Path) -> None:
    (copy / "manifest.json").unlink()
    verdict = verify(copy)
    assert (
        verdict.state == "unfinished"
        and not verdict.is_whole
        and "not finished" in check(verdict, "files").unchecked[0]
    )
    assert check(verdict, "replay").compared == 40


def test_what_a_resume_makes_again_is_unfinished_and_what_it_cannot_is_damaged(copy: Path) -> None:
    (copy / "manifest.json").unlink()
    (copy / "checkpoints/step-00000040/state.json").write_bytes(b"torn")
    (copy / "model.safetensors").unlink()
    verdict = verify(copy, updates=0)
    assert verdict.state == "unfinished" and verdict.as_json()["whole"] is False, verdict.faults
    assert "a resume goes on from step 32" in check(verdict, "checkpoints").unchecked[0]
    assert cli.main(["verify", str(copy), "--updates", "0"]) == 0
    (copy / "checkpoints/step-00000008/model.safetensors").unlink()  # a snapshot that nobody makes again
    assert verify(copy, updates=0).state == "damaged" and cli.main(["verify", str(copy), "--updates", "0"]) == 1


def test_a_run_that_was_killed_between_its_first_files_is_not_called_damaged(copy: Path) -> None:
    for path in copy.iterdir():
        if path.name not in ("config.toml", "source.json", "tokenizer.json", "checkpoints"):
            path.unlink()
    assert not verify(copy).is_whole, "there are checkpoints, so there was telemetry"
    shutil.rmtree(copy / "checkpoints")
    verdict = verify(copy)
    assert verdict.state == "unfinished", verdict.faults
    assert "no whole checkpoint" in check(verdict, "telemetry").unchecked[0]


def test_a_training_that_was_watched_elsewhere_is_not_called_damaged(tmp_path: Path) -> None:
    model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watcher = qkv.api.watch(model, optimizer, tmp_path / "run", level="full")
    for _ in range(4):
        loss = model(torch.ones(2, 3, 16)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    verdict = verify(watcher.close())
    assert verdict.is_whole, verdict.faults
    assert "no checkpoints" in check(verdict, "checkpoints").unchecked[0]
    assert check(verdict, "checkpoints").compared == 2 and check(verdict, "telemetry").compared > 100
    (tmp_path / "run/checkpoints/step-00000000/model.safetensors").write_bytes(b"no weights")
    assert not verify(tmp_path / "run").is_whole


@pytest.mark.parametrize("named", [False, True])
def test_a_watched_training_that_was_killed_is_told_as_what_it_is(tmp_path: Path, capsys, named: bool) -> None:
    model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names = {"names": {"layers.{L}.linear1.weight": "L{L}.W_in"}, "n_heads": 1} if named else {}
    watcher = qkv.watch(model, optimizer, tmp_path / "run", **names)
    for _ in range(4):
        model(torch.ones(2, 3, 16)).square().mean().backward()
        optimizer.step()
    with pytest.raises(RunFolderError, match="is being trained by a program of its own"):
        _ = qkv.load(tmp_path / "run").model
    watcher._let_go()  # what is left of it where the process was killed
    verdict = verify(tmp_path / "run")
    assert verdict.state == "unfinished", verdict.faults
    said = check(verdict, "files").unchecked[0]
    assert "without closing it; what it recorded reaches step 4" in said and "--resume" not in said
    assert cli.main(["train", "--out", str(tmp_path / "run"), "--resume"]) == 2
    assert "cannot go on with it. To read it: qkv show" in capsys.readouterr().err
    with pytest.raises(RunFolderError, match="the weights of its start, not those of its end"):
        _ = qkv.load(tmp_path / "run").model


def test_a_run_in_training_is_refused(copy: Path) -> None:
    with RunFolder.open(copy, writing=True), pytest.raises(RunFolderError, match="being written"):
        verify(copy)
    assert verify(copy, updates=0).is_whole


def test_data_that_changed_are_said_and_are_no_damage(text: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    own.write_bytes(text.read_bytes())
    run = train(own, tmp_path / "run", steps=3)
    own.write_text("other words " * 400)
    verdict = verify(run.path)
    assert verdict.is_whole and "has changed" in check(verdict, "replay").unchecked[0]
    assert check(verdict, "replay").compared == 0


def test_elsewhere_exactness_is_not_promised_and_what_can_be_checked_is(copy: Path) -> None:
    with sqlite3.connect(copy / "telemetry.sqlite") as database:
        (found,) = database.execute("SELECT value FROM clock_facts WHERE key = 'machines'").fetchone()
        machines = json.loads(found)
        machines[0]["versions"]["torch"] = "1.0.0"
        database.execute("UPDATE clock_facts SET value = ? WHERE key = 'machines'", (json.dumps(machines),))
    database.close()
    sealed_again(copy)
    verdict = verify(copy)
    assert verdict.is_whole and "torch was 1.0.0" in check(verdict, "replay").unchecked[0]
    altered_weight(copy, 8, "L1.W_in")
    verdict = verify(copy)
    assert verdict.is_whole and any("L1.W_in" in words for words in check(verdict, "replay").unchecked)
    with sqlite3.connect(copy / "telemetry.sqlite") as database:
        database.execute("UPDATE steps SET loss = loss * 1.05 WHERE step = 1")
    database.close()
    sealed_again(copy)
    assert [fault.step for fault in verify(copy).faults] == [1]


def test_resuming_elsewhere_is_said(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, said = train(text, tmp_path / "run", steps=10), []
    (run.path / "manifest.json").unlink()
    monkeypatch.setattr("qkv.recipe.manifest.processor", lambda: "another processor")
    qkv.train(out=run.path, resume=True, report=False, say=said.append)
    assert any("the processor was" in words and "another processor" in words for words in said)
    with qkv.load(run.path).telemetry() as telemetry:
        assert [session.kind for session in telemetry.sessions()].count("machine") == 1
    assert "the processor was" in check(verify(run.path), "replay").unchecked[0]


def test_what_to_do_about_a_spike_may_change_on_a_resume(text: Path, tmp_path: Path) -> None:
    words = ["--tokenizer", "char", "--set", ",".join(f"{k}={v}" for k, v in SMALL.items()), "--no-report"]
    out = str(tmp_path / "run")
    assert cli.main(["train", str(text), *words, "--steps", "9", "--on-spike", "rollback", "--out", out]) == 0
    assert qkv.load(out).config.training.on_spike == "rollback"
    (tmp_path / "run" / "manifest.json").unlink()
    assert cli.main(["train", "--out", out, "--resume", "--on-spike", "ignore", "--no-report"]) == 0
    assert qkv.load(out).config.training.on_spike == "ignore" and verify(out).is_whole
    assert cli.main(["train", str(text), "--steps", "9", "--on-spike", "pray", "--out", out + "2"]) == 2


def test_the_command_says_what_is_wrong_and_ends_with_1(copy: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["verify", str(copy), "--updates", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["whole"] is True
    (copy / "tokenizer.json").write_text("{}")
    assert cli.main(["verify", str(copy), "--updates", "0"]) == 1
    out = capsys.readouterr().out
    assert "wrong: tokenizer.json" in out and "is damaged" in out
    assert cli.main(["verify", str(copy), "--updates", "0", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["whole"] is False and found["checks"][0]["faults"][0]["file"] == "tokenizer.json"
    assert cli.main(["verify", str(copy / "nowhere")]) == 2


def test_a_run_whose_start_was_changed_is_whole_from_its_newest_checkpoints_too(text: Path, tmp_path: Path) -> None:
    options = {"change": ["L0.W_[QK]=identity"], "set": SMALL | {"n_heads": 1}}
    verdict = verify(train(text, tmp_path / "run", **options).path, updates=8)
    assert verdict.is_whole, [str(fault) for fault in verdict.faults]
    assert "(0 to 8 and 32 to 40)" in check(verdict, "replay").what


def test_updates_of_an_unknown_horizon_are_said_not_to_be_made_again(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(text, tmp_path / "run", steps=None, minutes=0.1)
    monkeypatch.setattr("qkv.recipe.audit.replay._horizon", lambda segment: 0)
    replay = check(verify(run.path), "replay")
    assert not replay.faults and replay.compared == 0 and "not made again" in " ".join(replay.unchecked)
