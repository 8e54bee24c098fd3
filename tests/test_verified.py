"""What is opened of a run is what was written: bytes, types and numbers, in the run and not elsewhere."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from qkv.errors import DamagedFileError, RunFolderError
from qkv.folder import hashes, verified
from qkv.folder.run_folder import RunFolder, link, sha256_of
from qkv.folder.verified import check_file, check_weights, checkpoint_files, damage, read_state, state_digest

WEIGHTS = {"W_E": np.arange(12, dtype=np.float32).reshape(3, 4), "L0.W_Q": np.ones((4, 4), dtype=np.float32)}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own. What has just been written is not remembered; `test_hashes` has what is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def add_checkpoint(run: RunFolder, step: int, weights: dict[str, np.ndarray] = WEIGHTS) -> Path:
    """A checkpoint of these weights, with their hash; returns its folder."""
    place = run.checkpoints / f"step-{step:08d}"
    place.mkdir(parents=True)
    save_file(weights, place / "model.safetensors")
    write_state(place, {"model.safetensors": sha256_of(place / "model.safetensors")})
    return place


def write_state(place: Path, files: dict[str, str]) -> None:
    content: dict[str, object] = {"format_version": 1, "training": {"step": int(place.name[5:])}, "files": files}
    (place / "state.json").write_text(json.dumps(content | {"sha256": state_digest(content)}))


@pytest.fixture
def training(tmp_path: Path) -> RunFolder:
    """A run of two checkpoints that is not finished; the best weights are those of the first."""
    with RunFolder.create(tmp_path / "run") as run:
        run.write("config.toml", 'task = "causal"\n')
        run.write("tokenizer.json", '{"model": {}}')
        first = add_checkpoint(run, 8)
        second = add_checkpoint(run, 16, {name: 2 * values for name, values in WEIGHTS.items()})
        link(first / "model.safetensors", run.best)
        link(second / "model.safetensors", run.model)
    return run


@pytest.fixture
def run(training: RunFolder) -> RunFolder:
    """The same, finished; its files are copies, as of a run that was sent."""
    for path in (training.best, training.model):
        shutil.copy(path, path.with_name("copy"))
        path.with_name("copy").replace(path)
    training.write("telemetry.sqlite", b"rows of numbers")
    training.seal({"summary": {"steps": 16}})
    return training


def flip(path: Path, at: int = -5) -> None:
    """Turn one bit over as a disk does it: size and dates stay."""
    before = os.stat(path)
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    with open(path, "r+b") as file:
        file.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def wrong(check: Callable[[Path], None], path: Path) -> str:
    """What is said of a damaged file, which is one sentence that names it."""
    with pytest.raises(DamagedFileError) as error:
        check(path)
    said = str(error.value)
    assert error.value.exit_status == 2 and str(path) in said and "\n" not in said
    return said


def files_of(run: RunFolder) -> list[Path]:
    named = ("config.toml", "tokenizer.json", "telemetry.sqlite")
    return [run.path / name for name in named] + [run.model, run.best]


def test_a_whole_run_passes_and_each_file_of_it_fails_over_one_bit(run):
    for path in files_of(run):
        check_file(path)
        flip(path)
        assert "its bytes are not those that were written (sha256)" in wrong(check_file, path)
        flip(path)
        check_file(path)
    assert damage(run) == ()


def test_damage_is_told_of_every_file_and_nothing_else(run):
    flip(run.model)
    run.tokenizer.unlink()
    flip(run.checkpoints / "step-00000008" / "model.safetensors")
    first = "checkpoints/step-00000008/model.safetensors"
    found = {one.file: one.sentence for one in damage(run)}
    assert set(found) == {"model.safetensors", "tokenizer.json", first}
    assert "it is missing" in found["tokenizer.json"]
    assert "there are weights of step 16 too" in found[first] and "qkv verify" in found[first]


def test_the_state_of_a_checkpoint_that_cannot_be_read_is_told(run):
    state = run.checkpoints / "step-00000016" / "state.json"
    state.write_bytes(bytes(len(state.read_bytes())))
    (one,) = damage(run)
    assert one.file == "checkpoints/step-00000016/state.json" and "is damaged" in one.sentence


def test_weights_that_lie_whole_in_a_checkpoint_are_named(run):
    flip(run.best)
    twin = run.checkpoints / "step-00000008" / "model.safetensors"
    assert f"the same is whole in a checkpoint: cp {twin} {run.best}" in wrong(check_weights, run.best)
    shutil.copy(twin, run.best)
    check_weights(run.best)
    flip(run.best)
    flip(twin)
    assert "put the file back from a copy of the run, or train it again" in wrong(check_weights, run.best)


def test_a_manifest_that_was_altered_vouches_for_nothing(run):
    run.manifest.write_text(run.manifest.read_text().replace('"steps": 16', '"steps": 61'))
    for path in files_of(run):
        with pytest.raises(DamagedFileError, match="manifest.json is damaged: its values are not those"):
            check_file(path)
    assert [one.file for one in damage(run)] == ["manifest.json"]
    with pytest.raises(DamagedFileError):
        run.read_manifest()
    assert run.read_manifest(altered=True)["summary"]["steps"] == 61


def test_a_file_that_the_manifest_does_not_have_is_no_file_of_the_run(run):
    run.write("teachers.safetensors", run.model.read_bytes())
    assert "manifest.json has no hash of it" in wrong(check_weights, run.teachers)
    run.write("tokenizer.source.json", "{}")  # which a person may put there
    check_file(run.path / "tokenizer.source.json")


def test_weights_of_a_run_that_trains_are_those_of_a_checkpoint(training):
    for path in (training.model, training.best):
        check_weights(path)
    check_file(training.config)  # nothing vouches for it yet
    save_file({name: 3 * values for name, values in WEIGHTS.items()}, training.path / "other")
    (training.path / "other").replace(training.model)
    assert "--resume goes on from the newest whole checkpoint" in wrong(check_weights, training.model)
    assert [one.file for one in damage(training)] == ["model.safetensors"]


def test_a_checkpoint_that_is_replaced_while_it_is_read_is_read_again(training, monkeypatch):
    """A training links new weights between the look at its states and the look at its file."""
    asked = []

    def reading(path: Path) -> str:
        asked.append(path)
        if len(asked) == 1:
            third = add_checkpoint(training, 24, {name: 4 * values for name, values in WEIGHTS.items()})
            link(third / "model.safetensors", training.model)
        return sha256_of(path)

    monkeypatch.setattr(verified, "sha256_remembered", reading)
    check_file(training.model)
    assert len(asked) == 2


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16])
def test_every_type_of_weights_is_taken_and_one_number_that_is_not_finite_is_not(run, kind):
    for value in (np.nan, np.inf, -np.inf):
        weights = {"W_E": np.ones((5, 7), dtype=kind), "L0.W_Q": np.ones((3, 3), dtype=kind)}
        save_file(weights, run.best)
        run.seal({})
        check_weights(run.best)
        weights["L0.W_Q"][2, 1] = value
        save_file(weights, run.best)
        run.seal({})
        assert "L0.W_Q holds numbers that are not finite (NaN or infinity)" in wrong(check_weights, run.best)


def test_weights_in_bfloat16_are_looked_through_too(run):
    import torch
    from safetensors.torch import save_file as save_torch

    weights = {"W_E": torch.tensor([[1.0, -3e38], [0.0, 1e-40]], dtype=torch.bfloat16)}
    for value, is_sound in ((2.0, True), (float("inf"), False), (float("nan"), False)):
        weights["W_E"][1, 0] = value
        save_torch(weights, run.best)
        run.seal({})
        if is_sound:
            check_weights(run.best)
        else:
            assert "not finite" in wrong(check_weights, run.best)


def relabel(path: Path, old: str, new: str) -> None:
    """Let the header of a file say something else, with as many bytes."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = data[8 : 8 + length].replace(old.encode(), new.encode())
    assert len(header) == length and header != data[8 : 8 + length]
    path.write_bytes(data[:8] + header + data[8 + length :])


def test_whole_numbers_are_no_weights(run):
    relabel(run.best, '"F32"', '"I32"')
    run.seal({})
    assert "is stored as I32; weights are F64, F32, F16, BF16" in wrong(check_weights, run.best)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-8]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:]),
        lambda path: path.write_bytes(struct.pack("<Q", 9) + b"[[[[[[[[["),
        lambda path: path.write_bytes(struct.pack("<Q", 4000) + b"[" * 4000),
        lambda path: path.write_bytes(struct.pack("<Q", 8) + b'{"a": 1}'),
        lambda path: relabel(path, '"shape":[4,4]', '"shape":[4,5]'),
        lambda path: relabel(path, '"shape":[4,4]', '"shape":[4,x]'),
    ],
)
def test_what_is_no_safetensors_file_is_said_so(run, spoil):
    spoil(run.best)
    run.seal({})
    assert "it is no whole safetensors file" in wrong(check_weights, run.best)


def test_numbers_are_looked_through_once(run, monkeypatch):
    monkeypatch.setattr(hashes, "QUIET_SECONDS", -1.0)
    check_weights(run.best)
    monkeypatch.setattr(verified, "_scan", lambda path: pytest.fail("it was looked through again"))
    check_weights(run.best)
    hashes._cache.cache_clear()  # as another process
    check_weights(run.best)


def test_weights_outside_a_run_are_checked_for_their_numbers(tmp_path):
    save_file(WEIGHTS, tmp_path / "model.safetensors")
    check_weights(tmp_path / "model.safetensors")
    save_file({"W_E": np.full(3, np.nan, dtype=np.float32)}, tmp_path / "model.safetensors")
    assert "W_E holds numbers that are not finite" in wrong(check_weights, tmp_path / "model.safetensors")
    with pytest.raises(RunFolderError, match="cannot be read: No such file"):
        check_weights(tmp_path / "none.safetensors")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("name", ["best.safetensors", "tokenizer.json", "config.toml", "telemetry.sqlite"])
def test_a_link_out_of_the_run_and_a_pipe_are_not_followed(run, tmp_path, name):
    path = run.path / name
    path.replace(tmp_path / "outside")
    path.symlink_to(tmp_path / "outside")  # the same bytes, and so the same hash
    if name != "config.toml":
        assert "it is a link that leads out of the run" in wrong(check_file, path)
        path.unlink()
        os.mkfifo(path)
        assert "it is no file, but a device or a pipe" in wrong(check_file, path)
    assert [one.file for one in damage(run)] == [name]


def test_a_run_that_is_reached_by_a_link_is_whole(run, tmp_path):
    (tmp_path / "link").symlink_to(run.path)
    for path in files_of(RunFolder(tmp_path / "link")):
        check_file(path)


@pytest.mark.parametrize(
    "name", ["../../../dev/zero", "/dev/zero", "../model.safetensors", "telemetry.sqlite", "", "state.json"]
)
def test_a_state_names_files_of_a_checkpoint_only(run, name):
    place = run.checkpoints / "step-00000008"
    write_state(place, checkpoint_files(place) | {name: "0" * 64})
    with pytest.raises(DamagedFileError, match="which is no file of a checkpoint"):
        read_state(place)
    with pytest.raises(DamagedFileError, match="state.json is damaged"):
        check_weights(place / "model.safetensors")


def test_a_manifest_names_files_of_a_run_only(run):
    manifest = run.read_manifest()
    run.write_manifest(manifest | {"files": manifest["files"] | {"../../outside": "0" * 64}})
    (one,) = damage(run)
    assert one.file == "manifest.json" and "'../../outside', which is no file of a run" in one.sentence


def test_a_checkpoint_outside_the_run_is_not_one_of_it(run, tmp_path):
    place = run.checkpoints / "step-00000016"
    shutil.move(place, tmp_path / "outside")
    place.symlink_to(tmp_path / "outside")
    assert list(run.checkpoint_folders()) == [8]
    assert "leads out of the run" in wrong(check_file, place / "model.safetensors")


@pytest.mark.parametrize(
    "name", ["step-²", "step-1", "step-٣٣٣٣٣٣٣٣", "step-0000000x", "step-000000016", "step--0000008"]
)
def test_a_folder_of_a_strange_name_is_no_checkpoint(run, name):
    (run.checkpoints / name).mkdir()
    (run.checkpoints / name / "model.safetensors").write_bytes(b"")
    assert list(run.checkpoint_folders()) == [8, 16] and list(run.weights()) == [8, 16]


OPENERS = {
    "safe_open(": {"training/tensorfile.py", "changes/stored.py", "interop/folders.py"},
    "load_file(": {"training/tensorfile.py"},
    "sqlite3.connect(": {"telemetry/schema.py"},
    "load_tensors(": {
        *("training/tensorfile.py", "training/checkpoint.py"),  # of what was hashed to the last byte just before
        *("recipe/audit/replay.py", "recipe/audit/verification.py", "recipe/audit/telemetry.py"),
    },
}
"""What opens a file unchecked, and who may: whoever checks it, or reads a folder that is none of ours."""


def test_nobody_else_opens_a_file_of_weights_or_telemetry():
    source = Path(verified.__file__).parents[1]
    for opener, allowed in OPENERS.items():
        users = {str(path.relative_to(source)) for path in source.rglob("*.py") if opener in path.read_text("utf-8")}
        assert users == allowed, opener
