"""Every write may fail: the disk is full at each of them in turn, and nothing that was saved is lost.

A shim counts what a training writes (blocks of files, renames, links) and makes one of them, and all after it, fail as
a full disk does. The run must end in our own error, leave a folder that is whole up to its newest checkpoint, and end
with the bytes of an undisturbed run once there is room again.
"""

import errno
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from qkv.errors import StorageError
from qkv.folder import run_folder as folder_module
from qkv.folder.run_folder import RunFolder
from qkv.telemetry import Telemetry
from qkv.training.checkpoint import latest_valid, standing

STEPS = 24


class Quota:
    """Counts writes; from the n-th on each fails. `torn` lets half of the failing block through first."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count, self.fails_at, self.torn, self.error = 0, 1 << 60, False, errno.ENOSPC
        self._write = folder_module._write
        patch.setattr(folder_module, "_write", self.write)
        for module, name in ((os, "replace"), (os, "link"), (os, "rename")):
            patch.setattr(module, name, self.counted(getattr(module, name)))

    def full(self) -> bool:
        self.count += 1
        return self.count >= self.fails_at

    def write(self, descriptor: int, data: memoryview) -> None:
        if self.full():
            if self.torn:
                self._write(descriptor, data[: len(data) // 2])
            raise OSError(self.error, os.strerror(self.error))
        self._write(descriptor, data)

    def counted(self, function: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            if self.full():
                raise OSError(self.error, os.strerror(self.error))
            return function(*arguments, **named)

        return call


def weights(run: Path) -> tuple[bytes, bytes]:
    return (run / "model.safetensors").read_bytes(), (run / "best.safetensors").read_bytes()


def rows(run: Path) -> list[tuple[float, ...]]:
    with Telemetry(run / "telemetry.sqlite") as telemetry:
        steps = telemetry.steps()
    return list(zip(steps.step.tolist(), steps.loss.tolist(), steps.grad_norm.tolist(), strict=True))


@pytest.fixture
def quota(monkeypatch: pytest.MonkeyPatch) -> Quota:
    return Quota(monkeypatch)


def disturbed(tiny: ModuleType, quota: Quota, where: Path, whole: Path, fails_at: int) -> None:
    """One run whose `fails_at`-th write fails, checked, resumed and compared."""
    quota.count, quota.fails_at = 0, fails_at
    with pytest.raises(StorageError, match="disk is full" if quota.error == errno.ENOSPC else "no permission"):
        tiny.train(where, steps=STEPS)
    quota.fails_at = 1 << 60
    if not (where / "config.toml").exists():  # the very first file: nothing was trained, nothing is left to resume
        assert not list(where.glob("checkpoints/step-*"))
        return
    with RunFolder.open(where, writing=True) as folder:
        found, words = latest_valid(folder)
        assert words == [] and not list(where.rglob(".part-*"))
        assert all(one.trouble in ("", "thinned") for one in standing(folder))
        newest = max((one.step for one in standing(folder)), default=-1)
        assert (found.state.step if found else -1) == newest
    outcome = tiny.train(where, resume=True, steps=STEPS)
    assert outcome.steps == STEPS and outcome.resumed_from_step == (newest if newest >= 0 else None)
    assert weights(where) == weights(whole) and rows(where) == rows(whole)


@pytest.fixture
def whole(tiny: ModuleType, tmp_path: Path, quota: Quota) -> tuple[Path, int]:
    """An undisturbed run, and how many writes it made."""
    tiny.train(tmp_path / "whole", steps=STEPS)
    return tmp_path / "whole", quota.count


@pytest.mark.parametrize("share", [0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
def test_a_disk_that_fills_up_loses_nothing_that_was_saved(
    tiny: ModuleType, tmp_path: Path, quota: Quota, whole: tuple[Path, int], share: float
) -> None:
    quota.torn = share > 0.5
    disturbed(tiny, quota, tmp_path / "full", whole[0], 1 + round(share * (whole[1] - 1)))


@pytest.mark.slow
@pytest.mark.parametrize("torn", [False, True])
def test_a_disk_that_is_full_at_every_single_write(
    tiny: ModuleType, tmp_path: Path, quota: Quota, whole: tuple[Path, int], torn: bool
) -> None:
    quota.torn = torn
    for number in range(1, whole[1] + 1):
        disturbed(tiny, quota, tmp_path / f"full-{number}", whole[0], number)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_disk_that_becomes_read_only_loses_nothing_that_was_saved(
    tiny: ModuleType, tmp_path: Path, quota: Quota, whole: tuple[Path, int], share: float
) -> None:
    quota.error = errno.EROFS
    disturbed(tiny, quota, tmp_path / "read-only", whole[0], 1 + round(share * (whole[1] - 1)))


@pytest.mark.skipif(os.name == "nt" or (hasattr(os, "geteuid") and os.geteuid() == 0), reason="root may write anywhere")
def test_a_folder_that_became_read_only_is_said(tiny: ModuleType, tmp_path: Path) -> None:
    tiny.train(tmp_path / "run", steps=8)
    (tmp_path / "run" / "checkpoints").chmod(0o500)
    try:
        with pytest.raises(StorageError, match="permission"):
            tiny.train(tmp_path / "run", resume=True, steps=16)
    finally:
        (tmp_path / "run" / "checkpoints").chmod(0o700)
