"""What is sent to a tracker is what the telemetry holds, and what TensorBoard would read."""

import struct
import sys
import types

import pytest

import qkv
from qkv.cli import main
from qkv.instruments.trackers import EventFile, crc32c, open_tracker

WORDS = ("--steps", "5", "--tokenizer", "char", "--set", "d_model=32,n_layers=1,n_ctx=16", "--no-report")


def test_the_checksum_is_that_of_the_standard():
    """RFC 3720, B.4."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(bytes(range(32))) == 0x46DD794E


def varint(data, at):
    n = shift = 0
    while True:
        byte = data[at]
        at, n, shift = at + 1, n | (byte & 127) << shift, shift + 7
        if byte < 128:
            return n, at


def fields(data):
    """(field, value) of a protocol-buffer message."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        elif key & 7 == 2:
            size, at = varint(data, at)
            value, at = data[at : at + size], at + size
        else:
            size = {1: 8, 5: 4}[key & 7]
            value, at = data[at : at + size], at + size
        yield key >> 3, value


def read_events(path):
    """{(step, tag): value} of an event file, its checksums checked."""
    data, at, found = path.read_bytes(), 0, {}
    while at < len(data):
        length, event = data[at : at + 8], data[at + 12 : at + 12 + struct.unpack("<Q", data[at : at + 8])[0]]
        for part, kept in ((length, data[at + 8 : at + 12]), (event, data[at + 12 + len(event) :][:4])):
            crc = crc32c(part)
            assert struct.unpack("<I", kept)[0] == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        message = dict(fields(event))
        for _, value in fields(message.get(5, b"")):
            scalar = dict(fields(value))
            found[message[2], scalar[1].decode()] = struct.unpack("<f", scalar[2])[0]
        at += 16 + len(event)
    return found


def test_an_event_file_holds_each_value_at_its_step(tmp_path):
    file = EventFile(tmp_path, "run", {})
    file.scalars(1, {"loss": 2.5, "drift/L0.W_Q": 0.125})
    file.scalars(300, {"loss": -1.0})
    file.close()
    assert read_events(file.path) == {(1, "loss"): 2.5, (1, "drift/L0.W_Q"): 0.125, (300, "loss"): -1.0}


def test_tensorboard_itself_reads_it(tmp_path):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader", reason="needs tensorboard")
    file = EventFile(tmp_path, "run", {})
    file.scalars(7, {"loss": 2.5})
    file.close()
    events = [e for e in loader.RawEventFileLoader(str(file.path)).Load()]
    assert len(events) == 2


def test_what_is_sent_is_what_the_telemetry_holds(small_text, tmp_path):
    out = tmp_path / "run"
    assert main(["train", str(small_text), "--out", str(out), "--log", "tensorboard", *WORDS]) == 0
    (path,) = (out / "tensorboard").iterdir()
    sent = read_events(path)
    run = qkv.load(out)
    with run.telemetry() as telemetry:
        steps = telemetry.steps()
        drift = telemetry.at(5, "drift")
        evaluations = telemetry.evaluations()
    assert [sent[step, "loss"] for step in range(1, 6)] == pytest.approx(steps.loss.tolist(), rel=1e-6)
    assert drift and {address: sent[5, f"drift/{address}"] for address in drift} == pytest.approx(drift, rel=1e-6)
    assert [sent[e.step, "val_loss"] for e in evaluations] == pytest.approx([e.loss for e in evaluations], rel=1e-6)


def test_sending_changes_no_byte_of_the_run(small_text, tmp_path):
    for name, more in (("a", ()), ("b", ("--log", "tensorboard"))):
        assert main(["train", str(small_text), "--out", str(tmp_path / name), *WORDS, *more]) == 0
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("library", ["wandb", "trackio"])
def test_libraries_that_speak_wandb_are_told_the_same(library, tmp_path, monkeypatch):
    calls = []
    stand_in = types.SimpleNamespace(
        init=lambda **how: calls.append(("init", how)),
        log=lambda values, step: calls.append((step, values)),
        finish=lambda: calls.append("finish"),
    )
    monkeypatch.setitem(sys.modules, library, stand_in)
    tracker = open_tracker(library, tmp_path / "my-run", {"seed": 1})
    tracker.scalars(3, {"loss": 1.5})
    tracker.close()
    assert calls == [
        ("init", {"project": "qkv", "name": "my-run", "config": {"seed": 1}}),
        (3, {"loss": 1.5}),
        "finish",
    ]


def test_an_unknown_place_and_a_missing_library_are_explained_and_nothing_is_made(
    small_text, tmp_path, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, "wandb", None)
    for name, said in (("tensorbord", "did you mean 'tensorboard'"), ("wandb", "pip install wandb")):
        assert main(["train", str(small_text), "--out", str(tmp_path / "run"), "--log", name, *WORDS]) == 2
        assert said in capsys.readouterr().err
        assert not (tmp_path / "run").exists()


def test_a_library_that_cannot_begin_is_explained_and_nothing_is_made(small_text, tmp_path, capsys, monkeypatch):
    def refused(**how):
        raise RuntimeError("api_key not configured (no-tty)\ncall wandb.login()")

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=refused))
    assert main(["train", str(small_text), "--out", str(tmp_path / "run"), "--log", "wandb", *WORDS]) == 2
    assert "--log wandb could not begin: api_key not configured (no-tty); leave --log out" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_destination_that_breaks_ends_no_training(small_text, tmp_path, monkeypatch, capsys):
    def broken(self, step, values):
        raise OSError("the disk there is gone")

    monkeypatch.setattr(EventFile, "scalars", broken)
    assert main(["train", str(small_text), "--out", str(tmp_path / "run"), "--log", "tensorboard", *WORDS]) == 0
    assert capsys.readouterr().err.count("the disk there is gone") == 1
    assert qkv.load(tmp_path / "run").summary["steps"] == 5
