"""A new folder is there whole, under its name, or not at all."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.errors import RunFolderError, StorageError
from qkv.folder import staging
from qkv.folder.staging import check_elsewhere, staged

HOLDING = """
import sys, time
from pathlib import Path
from qkv.folder.staging import staged
with staged(Path(sys.argv[1])) as place:
    (place / "half").write_text("half")
    print(place, flush=True)
    time.sleep(600)
"""


def names(path: Path) -> list[str]:
    return sorted(item.name for item in path.iterdir())


@pytest.fixture
def holder(tmp_path: Path):
    """Another process in the middle of making `out`; what it prints is where."""
    with subprocess.Popen([sys.executable, "-c", HOLDING, str(tmp_path / "out")], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        place = Path(process.stdout.readline().decode().strip())
        assert (place / "half").is_file()
        yield process, place
        process.kill()


def test_a_folder_takes_its_name_at_the_end(tmp_path):
    out = tmp_path / "above" / "out"
    with staged(out) as place:
        (place / "a").write_text("a")
        assert not out.exists() and place.parent == out.parent
    assert names(tmp_path / "above") == ["out"] and (out / "a").read_text() == "a"


def test_an_empty_folder_is_taken_also_behind_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "real")
    with staged(tmp_path / "out") as place:
        (place / "a").write_text("a")
    assert (tmp_path / "out").is_symlink() and names(tmp_path / "real") == ["a"]


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_what_fails_leaves_nothing_and_no_folder_above_it(tmp_path, error):
    with pytest.raises(type(error)), staged(tmp_path / "a" / "b" / "out") as place:
        (place / "half").write_text("half")
        raise error
    assert names(tmp_path) == []


def test_a_name_that_is_taken_meanwhile_is_left_to_whoever_took_it(tmp_path):
    with pytest.raises(RunFolderError, match="was made by another program meanwhile; choose another --out"):
        with staged(tmp_path / "out"):
            (tmp_path / "out").mkdir()
            (tmp_path / "out" / "theirs").write_text("theirs")
    assert names(tmp_path) == ["out"] and names(tmp_path / "out") == ["theirs"]


def test_a_full_disk_is_a_storage_error(tmp_path, monkeypatch):
    def full(*names: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(StorageError, match="the disk is full"), staged(tmp_path / "out"):
        pass
    assert names(tmp_path) == []


@pytest.mark.skipif(os.name == "nt", reason="folders are not locked there, so nothing is swept")
def test_what_a_killed_process_left_is_swept_by_the_next_and_that_of_a_running_one_is_not(tmp_path, holder):
    process, place = holder
    with staged(tmp_path / "out") as mine:
        (mine / "whole").write_text("whole")
    assert names(tmp_path) == sorted([place.name, "out"]) and (place / "half").is_file()
    (tmp_path / "out" / "whole").unlink()
    process.send_signal(signal.SIGKILL)
    process.wait()
    with staged(tmp_path / "out"):
        pass
    assert names(tmp_path) == ["out"]


@pytest.mark.skipif(os.name == "nt", reason="folders are not locked there, so nothing is swept")
def test_only_folders_of_the_same_name_are_swept(tmp_path):
    left = [".part-out-1", ".part-other-1", ".part-out", ".part-o[u]t-1"]
    for name in left:
        (tmp_path / name).mkdir()
    (tmp_path / ".part-out-file").write_text("somebody's")
    (tmp_path / ".part-out-link").symlink_to(tmp_path / ".part-other-1")
    with staged(tmp_path / "out"):
        pass
    assert names(tmp_path) == sorted(["out", ".part-out-file", ".part-out-link", *left[1:]])


def test_where_folders_cannot_be_locked_a_folder_is_made_and_nothing_is_swept(tmp_path, monkeypatch):
    def refuse(descriptor: int) -> bool:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(staging, "lock_file", refuse)
    (tmp_path / ".part-out-1").mkdir()
    with staged(tmp_path / "out") as place:
        (place / "a").write_text("a")
    assert names(tmp_path) == [".part-out-1", "out"]


def test_a_folder_that_was_swept_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    """Another process may sweep between the making of a folder and the lock on it."""
    made, lock = [], staging._lock

    def late(place: Path) -> int:
        made.append(place)
        if len(made) == 1:
            place.rmdir()
        return lock(place)

    monkeypatch.setattr(staging, "_lock", late)
    with staged(tmp_path / "out") as place:
        assert place == made[1] != made[0]


def test_where_you_are_cannot_be_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_elsewhere(Path("new"))
    with pytest.raises(RunFolderError, match="is the folder that you are in; choose another --out"):
        check_elsewhere(Path("."))


def test_the_lock_ends_with_the_work(tmp_path):
    with staged(tmp_path / "out"):
        pass
    descriptor = staging._lock(tmp_path / "out")
    os.close(descriptor)
