"""The run folder: whole files or none, one writer, clear words."""

import errno
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.data.sources.receipt import Receipt
from qkv.errors import ConfigError, RunFolderError, StorageError, UserError
from qkv.folder import run_folder as folder_module
from qkv.folder.run_folder import RunFolder, check_place, link, runs_in, sha256_of, write_atomically
from qkv.signatures import refuse_pointer


def full_disk(descriptor: int, data: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def names(path: Path) -> set[str]:
    return {p.name for p in path.iterdir()}


def test_a_written_file_has_the_bytes_and_the_hash(tmp_path: Path) -> None:
    digest = write_atomically(tmp_path / "a", [b"one", memoryview(b"two")])
    assert (tmp_path / "a").read_bytes() == b"onetwo"
    assert digest == hashlib.sha256(b"onetwo").hexdigest() == sha256_of(tmp_path / "a")
    assert names(tmp_path) == {"a"}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """`--out /dev/null`, typed by root, would otherwise leave the machine a file of that name."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        digest = write_atomically(tmp_path / "pipe", [b"one", b"two"])
        assert os.read(reader, 100) == b"onetwo"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode) and names(tmp_path) == {"pipe"}
    assert digest == hashlib.sha256(b"onetwo").hexdigest()


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "to" / "a")
    for data in (b"first", b"second"):
        write_atomically(tmp_path / "link", data)
        assert (tmp_path / "link").is_symlink() and (tmp_path / "to" / "a").read_bytes() == data
    assert names(tmp_path) == {"to", "link"} and names(tmp_path / "to") == {"a"}


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomically(tmp_path / "a", b"old")
    monkeypatch.setattr(folder_module, "_write", full_disk)
    with pytest.raises(StorageError, match="disk is full.*--resume"):
        write_atomically(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert names(tmp_path) == {"a"}


def test_a_kill_between_write_and_rename_leaves_the_old_file(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", b"old")
    script = (
        "import os, sys, pathlib; from qkv.folder import run_folder as folder; os.replace = lambda *names: os._exit(9);"
        "folder.write_atomically(pathlib.Path(sys.argv[1]), b'new')"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path / "a")]).returncode == 9
    assert (tmp_path / "a").read_bytes() == b"old"


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
def test_no_permission_is_said_so(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="no permission"):
        write_atomically(tmp_path / "a", b"new")


def test_a_file_goes_into_a_folder_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check_place(tmp_path / "new.html")
    check_place(tmp_path / "file")
    for wrong, words in (
        (
            tmp_path / "no" / "such" / "a.html",
            rf"there is no folder {tmp_path}/no/such; type mkdir -p {tmp_path}/no/such,",
        ),
        (tmp_path / "file" / "a.html", f"{tmp_path}/file is a file and no folder; choose another place"),
        (tmp_path, f"{tmp_path} is a folder; expected the name of a file"),
    ):
        with pytest.raises(UserError, match=words):
            check_place(wrong)


def test_a_folder_is_made_with_those_above_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check_place(tmp_path / "no" / "such" / "run", folder=True)
    with pytest.raises(UserError, match=f"{tmp_path}/file is a file and no folder"):
        RunFolder.create(tmp_path / "file" / "deep" / "run")


def test_a_place_without_permission_is_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    with pytest.raises(UserError, match=f"no permission to write in {tmp_path}; choose another place"):
        check_place(tmp_path / "a.html")


def test_no_permission_at_creation_asks_for_another_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(RunFolderError, match="Permission denied.*--out"):
        RunFolder.create(tmp_path / "run")


def test_link_is_the_same_file_and_replaces_what_was_there(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", b"new")
    write_atomically(tmp_path / "b", b"old")
    for _ in range(2):
        link(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"new"
    assert names(tmp_path) == {"a", "b"}


def test_link_copies_where_there_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    write_atomically(tmp_path / "a", b"new")
    link(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"new"
    assert names(tmp_path) == {"a", "b"}


def test_an_existing_run_is_refused_and_resume_is_offered(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run") as folder:
        folder.write("config.toml", "x = 1\n")
    with pytest.raises(RunFolderError, match="choose another --out .a training goes on with qkv train --resume"):
        RunFolder.create(tmp_path / "run")
    assert (tmp_path / "run" / "config.toml").read_text() == "x = 1\n"


def test_a_run_that_is_not_there_leads_to_one_that_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(path: str) -> str:
        with pytest.raises(RunFolderError) as error:
            RunFolder.open(path)
        return str(error.value)

    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert said("none") == "none is not there; give the folder of a run (train one with qkv train)"
    for age, name in enumerate(("runs/my 1", "runs/my-2", "elsewhere/other")):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.toml").touch()
        os.utime(tmp_path / name / "config.toml", ns=(age, age))
    assert runs_in(Path("runs"), Path("elsewhere"), Path("none")) == [
        Path("elsewhere/other"), Path("runs/my-2"), Path("runs/my 1")
    ]  # fmt: skip
    assert said("my-2").endswith("is not there; did you mean runs/my-2?")
    assert said("my_1").endswith("is not there; did you mean 'runs/my 1'?")
    assert said("elsewhere/othr").endswith("did you mean elsewhere/other?")
    assert said("zzz").endswith("zzz is not there; the newest run here is runs/my-2")
    assert said("runs") == "runs is not a run: it has no config.toml; the newest run in it is runs/my-2"
    assert said("empty").endswith("it has no config.toml; the newest run here is runs/my-2")


def test_a_foreign_folder_and_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"")
    with pytest.raises(RunFolderError, match="already exists; choose another --out"):
        RunFolder.create(tmp_path / "photos")
    with pytest.raises(RunFolderError, match="is a file"):
        RunFolder.create(tmp_path / "photos" / "cat.jpg")
    assert names(tmp_path / "photos") == {"cat.jpg"}


def test_an_empty_folder_may_be_used(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path) as folder:
        folder.write("config.toml", "")
    assert folder.config.is_file()


def test_a_folder_that_is_there_may_lie_in_one_that_is_not_ours(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    RunFolder(tmp_path / "out").check_vacant()
    with pytest.raises(UserError, match=f"no permission to write in {tmp_path}; choose another place"):
        RunFolder(tmp_path / "new").check_vacant()
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path / "out")
    with pytest.raises(UserError, match=f"no permission to write in {tmp_path}/out; choose another --out"):
        RunFolder(tmp_path / "out").check_vacant()


def test_a_users_mistake_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError), RunFolder.create(tmp_path / "runs" / "new") as folder:
        folder.write("config.toml", "")
        raise ConfigError("no such preset")
    assert names(tmp_path) == set()


def test_a_users_mistake_leaves_other_runs_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError), RunFolder.create(tmp_path / "runs" / "new"):
        (tmp_path / "runs" / "other").mkdir()
        raise ConfigError("no such preset")
    assert names(tmp_path / "runs") == {"other"}


def test_an_error_after_the_first_checkpoint_keeps_everything(tmp_path: Path) -> None:
    with pytest.raises(ConfigError), RunFolder.create(tmp_path / "run") as folder:
        (folder.checkpoints / "step-00000000").mkdir()
        raise ConfigError("too late")
    assert (tmp_path / "run" / "checkpoints" / "step-00000000").is_dir()


def test_a_folder_that_is_no_run_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is not there"):
        RunFolder.open(tmp_path / "nowhere")
    with pytest.raises(RunFolderError, match="not a run"):
        RunFolder.open(tmp_path)


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    script = (
        "import sys; from qkv.folder.run_folder import RunFolder; folder = RunFolder.create(sys.argv[1]);"
        "folder.write('config.toml', ''); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(RunFolderError, match=f"in use by another qkv .process {holder.pid}"):
            RunFolder.open(tmp_path / "run", writing=True)
        RunFolder.open(tmp_path / "run")  # reading needs no lock
        holder.kill()
    RunFolder.open(tmp_path / "run", writing=True).close()


@pytest.mark.skipif(os.name == "nt", reason="folders are not locked there")
def test_taking_the_lock_file_away_lets_nobody_in(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run") as run:
        run.write("config.toml", "")
        (run.path / ".lock").unlink()
        assert run.in_use()
        with pytest.raises(RunFolderError, match="is in use by another qkv"):
            RunFolder.open(run.path, writing=True)
    (run.path / ".lock").unlink()
    assert not run.in_use()
    RunFolder.open(run.path, writing=True).close()


@pytest.mark.skipif(os.name == "nt", reason="nothing is swept there")
def test_names_of_half_written_files_are_not_foreseen_and_what_a_kill_left_is_swept(tmp_path: Path) -> None:
    path, seen = tmp_path / "a", []

    def chunks():
        seen.extend(p.name for p in tmp_path.iterdir())
        other = sorted(tmp_path.iterdir())
        write_atomically(path, b"of another writer")  # sweeps nothing that is being written
        assert set(other) <= set(tmp_path.iterdir())
        yield b"mine"

    for _ in range(2):
        write_atomically(path, chunks())
    first, second = (name for name in seen if name != "a")
    assert first != second and first.startswith(".part-") and path.read_bytes() == b"mine"
    (tmp_path / first).write_bytes(b"left by a kill")
    (tmp_path / ".part-of-somebody").write_bytes(b"not ours")
    write_atomically(path, b"new")
    assert {p.name for p in tmp_path.iterdir()} == {"a", ".part-of-somebody"}


def test_what_a_run_was_trained_on_has_a_hash(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run") as run:
        run.write("source.json", "{}")
        run.seal({})
    assert run.damaged_files() == {}
    run.write("source.json", "{ }")
    assert run.damaged_files() == {"source.json": "altered"}


def test_opening_for_writing_sweeps_half_written_files(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run") as folder:
        folder.write("config.toml", "")
    (folder.path / ".part-config.toml").write_bytes(b"half")
    (folder.checkpoints / ".part-step-00000010").mkdir()
    RunFolder.open(folder.path, writing=True).close()
    assert not list(folder.path.rglob(".part-*"))


def test_the_manifest_notices_altered_and_missing_files(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run") as folder:
        folder.write("config.toml", "x = 1\n")
        folder.write("report.html", "<p>")
        assert not folder.is_finished
        with pytest.raises(RunFolderError, match="not finished"):
            folder.read_manifest()
        folder.seal({"threads": 2})
    assert folder.is_finished and folder.damaged_files() == {}
    assert folder.read_manifest()["threads"] == 2
    folder.config.write_text("x = 2\n")
    folder.report.unlink()
    assert folder.damaged_files() == {"config.toml": "altered", "report.html": "missing"}
    told = folder.manifest.read_text()
    folder.manifest.write_text(told.replace('"threads": 2', '"threads": 3'))
    assert folder.damaged_files() == {"config.toml": "altered", "report.html": "missing", "manifest.json": "altered"}
    folder.manifest.write_text(told)
    folder.write_manifest(folder.read_manifest() | {"threads": 3})
    assert "manifest.json" not in folder.damaged_files()


def test_weights_are_those_of_the_checkpoints_and_of_the_last_step_once_that_is_known(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run") as folder:
        folder.write("config.toml", "")
        for name in ("step-00000000", "step-00000100", "step-00000016", "step-x", ".part-step-00000032"):
            (folder.checkpoints / name).mkdir()
            (folder.checkpoints / name / "model.safetensors").write_bytes(b"")
        folder.write("model.safetensors", b"")
        kept = {int(p.parent.name[5:]): p for p in folder.checkpoints.glob("step-0*/*")}
        assert list(folder.weights(last_step=120)) == [0, 16, 100] and folder.weights() == kept
        folder.seal({})
        assert folder.weights() == kept and folder.weights(last_step=120) == kept | {120: folder.model}
        folder.seal({"summary": {"steps": 100}})
        assert folder.weights() == kept
        folder.seal({"summary": {"steps": 128}})
        assert list(folder.weights(last_step=120)) == [0, 16, 100, 128] and folder.weights()[128] == folder.model
        folder.seal({"summary": {"steps": 0}})  # as an imported model
        assert folder.weights() == kept
        folder.manifest.write_text("{")
        assert folder.weights() == kept


def test_what_failed_over_a_vanished_checkpoint_is_read_again_and_nothing_else(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run") as folder:
        folder.write("config.toml", "")
        for step in (0, 8, 16):
            (folder.checkpoints / f"step-{step:08d}").mkdir()
            (folder.checkpoints / f"step-{step:08d}" / "model.safetensors").write_bytes(b"")
    taken, asked = [8], []

    def read() -> list[int]:
        asked.append(len(asked))
        there = list(folder.weights())
        for step in taken:
            shutil.rmtree(folder.checkpoints / f"step-{step:08d}")
        if taken.clear() or len(there) == 3:
            raise RuntimeError("unable to open file")
        return there

    assert folder.steadily(read) == [0, 16] and len(asked) == 2
    asked.clear()
    with pytest.raises(ZeroDivisionError):
        folder.steadily(lambda: asked.append(1) or 1 // 0)
    assert len(asked) == 1


def test_a_manifest_never_leads_outside_the_folder(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run") as folder:
        folder.write("config.toml", "")
        folder.seal({})
    (tmp_path / "secret").write_bytes(b"")
    manifest = {"format_version": 1, "files": {"../secret": hashlib.sha256(b"").hexdigest()}}
    folder.manifest.write_text(json.dumps(manifest))
    assert folder.damaged_files() == {"../secret": "missing"}


@pytest.mark.skipif(sys.platform == "win32", reason="no pipes with names")
def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    refuse_pointer(tmp_path / "tokenizer.json")  # would wait for ever


RECEIPT = {"files": {"a": {"train": 3}}, "rows": {"read": 2}, "columns": {"t": "text"}, "classes": {"x": 2}}


def test_a_receipt_of_another_form_is_refused_and_one_with_more_in_it_is_read(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run") as folder:
        folder.write("config.toml", "")
        for wrong in ("x", {}, {**RECEIPT, "rows": "x"}, {**RECEIPT, "files": {"a": {"train": "3"}}}):
            folder.write("manifest.json", json.dumps({"format_version": 1, "receipt": wrong}))
            with pytest.raises(RunFolderError, match="of another type"):
                folder.read_manifest()
        folder.write("manifest.json", json.dumps({"format_version": 1, "receipt": RECEIPT}))
    RECEIPT["files"]["a"]["later"] = 1
    assert Receipt.of(RECEIPT) == Receipt.of(folder.read_manifest()["receipt"])


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format_version": 99}', '{"format_version": "1"}'])
def test_a_damaged_or_newer_manifest_is_refused(tmp_path: Path, text: str) -> None:
    with RunFolder.create(tmp_path / "run") as folder:
        folder.write("config.toml", "")
        folder.write("manifest.json", text)
    with pytest.raises(RunFolderError):
        folder.read_manifest()
