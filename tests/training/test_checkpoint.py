"""Checkpoints: whole or passed over, in the right places, and thinned without losing what is needed."""

import errno
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from qkv.errors import StorageError
from qkv.folder import run_folder as folder_module
from qkv.folder.run_folder import RunFolder
from qkv.training.checkpoint import (
    Checkpoints,
    TrainingState,
    is_due,
    is_snapshot,
    latest_valid,
    mark_stopped,
)


@pytest.fixture
def made(tiny: ModuleType) -> dict[str, Any]:
    return tiny.parts()


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder.create(tmp_path / "run")
    folder.write("config.toml", "")
    return folder


def write(folder: RunFolder, made: dict[str, Any], *steps: int, best: dict[int, int] | None = None) -> None:
    """Checkpoints at these steps; every weight of step n is n. `best` maps a step to the best step of its state."""
    checkpoints = Checkpoints(folder, made["catalogue"], made["optimizer"])
    for step in steps:
        for tensor in [*made["catalogue"].state().values(), *made["optimizer"].state().values()]:
            tensor.fill_(float(step))
        checkpoints.save(TrainingState(step=step, horizon=1000, best_step=(best or {}).get(step, -1)))
    checkpoints.close()


def standing(folder: RunFolder) -> dict[int, set[str]]:
    return {int(p.name[5:]): {f.name.split(".")[0] for f in p.iterdir()} for p in folder.checkpoints.glob("step-*")}


def test_the_newest_checkpoint_gives_back_the_same_bits(folder: RunFolder, made: dict[str, Any]) -> None:
    write(folder, made, 0, 10)
    checkpoint, words = latest_valid(folder)
    assert checkpoint is not None and checkpoint.state.step == 10 and words == []
    assert all((t == 10).all() for t in checkpoint.weights().values())
    assert checkpoint.weights().keys() == made["catalogue"].state().keys()
    assert checkpoint.optimizer_state().keys() == made["optimizer"].state().keys()


def test_a_state_survives_bit_for_bit(folder: RunFolder, made: dict[str, Any]) -> None:
    state = TrainingState(step=3, tokens=7, best_loss=0.1 + 0.2, train_loss=1e-300, probe_last=(2, 1 / 3, 2 / 3))
    checkpoints = Checkpoints(folder, made["catalogue"], made["optimizer"])
    checkpoints.save(state)
    checkpoints.close()
    checkpoint, _ = latest_valid(folder)
    assert checkpoint is not None and checkpoint.state == state


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["altered", "truncated", "missing"])
def test_a_damaged_checkpoint_is_passed_over_with_a_word(
    folder: RunFolder, made: dict[str, Any], name: str, damage: str
) -> None:
    write(folder, made, 0, 10, 20)
    path = folder.checkpoints / "step-00000020" / name
    data = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(data[: len(data) // 2])
    else:
        data[-40] ^= 1
        path.write_bytes(data)
    checkpoint, words = latest_valid(folder)
    assert checkpoint is not None and checkpoint.state.step == 10
    if (name, damage) != ("optimizer.safetensors", "missing"):
        assert len(words) == 1 and "step 20" in words[0] and "damaged" in words[0]


def test_without_a_whole_checkpoint_there_is_none(folder: RunFolder, made: dict[str, Any]) -> None:
    assert latest_valid(folder) == (None, [])
    write(folder, made, 0)
    (folder.checkpoints / "step-00000000" / "state.json").write_text("{}")
    assert latest_valid(folder)[0] is None


def test_a_half_written_checkpoint_is_no_checkpoint(folder: RunFolder, made: dict[str, Any]) -> None:
    write(folder, made, 0)
    (folder.checkpoints / ".part-step-00000010").mkdir()
    checkpoint, words = latest_valid(folder)
    assert checkpoint is not None and checkpoint.state.step == 0 and words == []


def test_the_newest_two_are_whole_snapshots_keep_weights_and_the_rest_goes(
    folder: RunFolder, made: dict[str, Any]
) -> None:
    write(folder, made, 0, 8, 10, 16, 30, 40, 50)
    whole, weights = {"model", "optimizer", "state"}, {"model", "state"}
    assert standing(folder) == {0: weights, 8: weights, 16: weights, 40: whole, 50: whole}


def test_the_best_is_kept_until_no_newest_state_needs_it(folder: RunFolder, made: dict[str, Any]) -> None:
    best = {10: 10, 20: 10, 30: 10, 40: 40, 50: 40, 60: 40}
    write(folder, made, *list(best)[:4], best=best)
    assert set(standing(folder)) == {10, 30, 40}  # the state of 30 still names 10
    write(folder, made, *best, best=best)
    assert set(standing(folder)) == {40, 50, 60}
    best_of_run = folder.best.read_bytes()
    assert best_of_run == (folder.checkpoints / "step-00000040" / "model.safetensors").read_bytes()
    assert folder.model.read_bytes() == (folder.checkpoints / "step-00000060" / "model.safetensors").read_bytes()


def test_a_byte_budget_thins_the_snapshots(folder: RunFolder, made: dict[str, Any]) -> None:
    checkpoints = Checkpoints(folder, made["catalogue"], made["optimizer"], keep_bytes=1)
    for step in (0, 8, 16, 32, 64, 128, 256, 512, 600, 700):
        checkpoints.save(TrainingState(step=step, horizon=1000))
    checkpoints.close()
    assert set(standing(folder)) == {0, 8, 128, 600, 700}


def test_on_a_resume_later_checkpoints_go_and_the_best_comes_back(folder: RunFolder, made: dict[str, Any]) -> None:
    write(folder, made, 10, 20, 30, best={10: 10, 20: 10, 30: 30})
    (folder.checkpoints / "step-00000030" / "state.json").write_text("torn")
    checkpoint, _ = latest_valid(folder)
    assert checkpoint is not None and checkpoint.state.best_step == 10
    checkpoints = Checkpoints(folder, made["catalogue"], made["optimizer"], resume=checkpoint)
    assert checkpoints.restore_best(checkpoint.state)
    checkpoints.close()
    assert set(standing(folder)) == {10, 20}
    assert folder.best.read_bytes() == (folder.checkpoints / "step-00000010" / "model.safetensors").read_bytes()


def test_a_resume_links_the_weights_of_its_checkpoint_though_the_writer_died_before_it_could(
    folder: RunFolder, made: dict[str, Any]
) -> None:
    write(folder, made, 10)
    before = folder.model.read_bytes()
    write(folder, made, 10, 20)
    folder.model.unlink()
    folder.model.write_bytes(before)
    checkpoint, _ = latest_valid(folder)
    Checkpoints(folder, made["catalogue"], made["optimizer"], resume=checkpoint).close()
    assert folder.model.read_bytes() == (folder.checkpoints / "step-00000020" / "model.safetensors").read_bytes()


def test_a_best_that_is_gone_is_said_to_be(folder: RunFolder, made: dict[str, Any]) -> None:
    write(folder, made, 10)
    checkpoints = Checkpoints(folder, made["catalogue"], made["optimizer"])
    assert not checkpoints.restore_best(TrainingState(step=20, best_step=10))
    checkpoints.close()


def test_a_full_disk_is_said_and_the_checkpoint_before_stays(
    folder: RunFolder, made: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, made, 0)
    checkpoint, _ = latest_valid(folder)
    checkpoints = Checkpoints(folder, made["catalogue"], made["optimizer"], resume=checkpoint)

    def full(descriptor: int, data: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(folder_module, "_write", full)
    checkpoints.save(TrainingState(step=10))
    with pytest.raises(StorageError, match="disk is full"):
        checkpoints.close()
    kept, words = latest_valid(folder)
    assert kept is not None and kept.state.step == 0 and words == []
    assert not list(folder.path.rglob(".part-*"))


def test_saving_does_not_see_later_changes(folder: RunFolder, made: dict[str, Any]) -> None:
    checkpoints = Checkpoints(folder, made["catalogue"], made["optimizer"])
    state = TrainingState(step=5, tokens=1)
    before = {a: t.clone() for a, t in made["catalogue"].state().items()}
    checkpoints.save(state)
    state.tokens = 2
    for tensor in made["catalogue"].state().values():
        tensor.fill_(0.0)
    checkpoints.close()
    checkpoint, _ = latest_valid(folder)
    assert checkpoint is not None and checkpoint.state.tokens == 1
    assert all(torch.equal(t, before[a]) for a, t in checkpoint.weights().items())


def test_why_it_stopped_can_be_noted_later(folder: RunFolder, made: dict[str, Any]) -> None:
    assert mark_stopped(folder, "nan") == -1
    write(folder, made, 0, 10)
    assert mark_stopped(folder, "nan") == 10
    checkpoint, words = latest_valid(folder)
    assert checkpoint is not None and checkpoint.state.stopped_because == "nan" and words == []
    assert not checkpoint.state.is_finished


def test_snapshots_are_powers_of_two_thinned_to_a_number() -> None:
    assert [s for s in range(1001) if is_snapshot(s, 1000, 64)] == [0, 8, 16, 32, 64, 128, 256, 512, 1000]
    for most in (4, 5, 6, 8):
        kept = [s for s in range(10_001) if is_snapshot(s, 10_000, most)]
        assert len(kept) <= most and kept[0] == 0 and kept[-1] == 10_000


def test_a_thinner_set_of_snapshots_is_a_part_of_a_thicker_one_for_any_horizon() -> None:
    early = {s for s in range(600) if is_snapshot(s, 0, 64)}  # while the horizon is being measured
    for horizon in (50, 700, 5000):
        assert {s for s in range(1, min(600, horizon)) if is_snapshot(s, horizon, 6)} <= early


@pytest.mark.parametrize(("tokens_per_step", "milliseconds"), [(768, 30), (4096, 100), (16384, 400)])
def test_checkpoints_come_every_few_seconds(tokens_per_step: int, milliseconds: int) -> None:
    due = [s for s in range(1501) if is_due(s, 1500, tokens_per_step)]
    gaps = [b - a for a, b in zip(due, due[1:], strict=False)]
    assert max(gaps) * milliseconds <= 3000
    assert len(due) <= 1500 * tokens_per_step / 65536 + 12
