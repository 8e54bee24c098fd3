"""`qkv train --nproc` and torchrun: one run whoever starts the processes, one sentence when one of them dies."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from qkv.cli import main
from qkv.config import load_toml

pytestmark = pytest.mark.cluster
SMALL = ["--tokenizer", "char", "--precision", "fp32", "--threads", "1", "--no-report", "--set"]
SIZES = "d_model=16,n_layers=1,n_heads=2,n_ctx=32,batch_size=8,dropout=0.1"
QKV = [sys.executable, "-m", "qkv"]


def started(words: list, **given) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **given
    )


def done(words: list) -> tuple[int, str]:
    process = started(words)
    out, err = process.communicate(timeout=900)
    assert out == "" or process.returncode == 0
    return process.returncode, err


def weights(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, small_text) -> Path:
    """A run of two processes that nothing happened to."""
    return whole_run(tmp_path_factory, small_text)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory, small_text) -> Path:
    """The same of two that share out weights and optimizer state."""
    return whole_run(tmp_path_factory, small_text, "--shard")


def whole_run(tmp_path_factory, small_text, *options: str) -> Path:
    out = tmp_path_factory.mktemp("two") / "run"
    status, err = done(
        [*QKV, "train", small_text, *SMALL, SIZES, "--steps", "400", "--nproc", "2", *options, "--out", out]
    )
    assert status == 0, err
    return out


def children(process: subprocess.Popen) -> list[int]:
    """The processes that it started, by rank."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if f"PPid:\t{process.pid}\n" in (entry / "status").read_text():
                    variables = (entry / "environ").read_bytes().split(b"\0")
                    found[next(int(v[5:]) for v in variables if v.startswith(b"RANK="))] = int(entry.name)
            except (OSError, StopIteration):
                pass
    return [found[rank] for rank in sorted(found)]


def wait_for_checkpoint(run: Path, process: subprocess.Popen) -> None:
    until = time.monotonic() + 600
    while not any(run.glob("checkpoints/step-0000[0-9]*[1-9]*/state.json")):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.skipif(not Path("/proc/self/environ").is_file(), reason="processes are found in /proc")
@pytest.mark.parametrize(("rank", "options"), [(1, ()), (0, ()), (1, ("--shard",)), (0, ("--shard",))])
def test_a_killed_process_ends_the_job_in_one_sentence_and_the_run_goes_on_exactly(
    rank: int, options: tuple[str, ...], request, small_text: Path, tmp_path: Path
) -> None:
    undisturbed = request.getfixturevalue("sharded" if options else "undisturbed")
    out = tmp_path / "run"
    words = [*QKV, "train", small_text, *SMALL, SIZES, "--steps", "400", "--nproc", "2", *options, "--out", out]
    process = started(words)
    try:
        wait_for_checkpoint(out, process)
        pids = children(process)
        os.kill(pids[rank], signal.SIGKILL)
        _, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 1 and "Traceback" not in err
    assert err.count("qkv: ") == 1
    assert f"process {rank} of 2 was killed by signal 9 (SIGKILL)" in err
    assert "continue with: qkv train --out" in err and "--resume" in err
    until = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < until, "a process was left behind"
        time.sleep(0.1)
    assert not (out / "manifest.json").exists()
    status, err = done([*QKV, "train", "--out", out, "--resume", "--no-report"])
    assert status == 0 and "going on from step" in err and "going on from step 0" not in err
    assert weights(out) == weights(undisturbed)


def test_torchrun_makes_the_same_run(undisturbed: Path, small_text: Path, tmp_path: Path) -> None:
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "qkv"]
    out = tmp_path / "run"
    status, err = done([*run, "train", small_text, *SMALL, SIZES, "--steps", "400", "--out", out])
    assert status == 0, err
    assert weights(out) == weights(undisturbed)
    machine = load_toml(out / "config.toml")["machine"]
    assert machine["ranks"] == 2 and machine["threads"] == 1


def test_a_run_goes_on_with_another_number_of_processes(undisturbed: Path, small_text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = started([*QKV, "train", small_text, *SMALL, SIZES, "--steps", "400", "--nproc", "2", "--out", out])
    try:
        wait_for_checkpoint(out, process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 143 and err.count("qkv: stopped at step") == 1, err
    status, err = done([*QKV, "train", "--out", out, "--resume", "--nproc", "4", "--no-report"])
    assert status == 0, err
    assert "the number of processes was 2 and is 4" in err and "may differ in its last bits" in err
    losses = [json.loads((run / "manifest.json").read_text())["summary"]["val_loss"] for run in (out, undisturbed)]
    assert losses[0] == pytest.approx(losses[1], abs=0.02) and losses[0] < 2  # rounding grows in 400 updates
    assert load_toml(out / "config.toml")["machine"]["ranks"] == 4


@pytest.mark.parametrize("options", [["--nproc", "4"], ["--nproc", "1"], ["--nproc", "2", "--no-shard"]])
def test_a_sharded_run_goes_on_with_other_processes_and_whole(
    options: list[str], sharded: Path, small_text: Path, tmp_path: Path
) -> None:
    """Its checkpoint is read by others than wrote it, the optimizer's state too, as the losses that follow show."""
    out = tmp_path / "run"
    words = [*QKV, "train", small_text, *SMALL, SIZES, "--steps", "400", "--nproc", "2", "--shard", "--out", out]
    process = started(words)
    try:
        wait_for_checkpoint(out, process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 143, err
    status, err = done([*QKV, "train", "--out", out, "--resume", *options, "--no-report"])
    assert status == 0 and "may differ in its last bits" in err, err
    losses = [json.loads((run / "manifest.json").read_text())["summary"]["val_loss"] for run in (out, sharded)]
    assert losses[0] == pytest.approx(losses[1], abs=0.02) and losses[0] < 2


def test_sharding_saves_nothing_but_memory(sharded: Path, undisturbed: Path) -> None:
    """The run folder is that of whole weights: the same files, tensors, shapes and, to rounding, the same loss."""
    for name in ("model.safetensors", "best.safetensors"):
        mine, theirs = load_file(sharded / name), load_file(undisturbed / name)
        assert {n: t.shape for n, t in mine.items()} == {n: t.shape for n, t in theirs.items()}
    shapes = [{p.name for p in run.iterdir()} for run in (sharded, undisturbed)]
    assert shapes[0] == shapes[1]
    losses = [json.loads((run / "manifest.json").read_text())["summary"]["val_loss"] for run in (sharded, undisturbed)]
    assert losses[0] == pytest.approx(losses[1], abs=0.02)
    assert main(["verify", str(sharded), "--updates", "8"]) == 0


def test_mistakes_are_one_sentence_and_make_nothing(small_text: Path, tmp_path: Path, capsys) -> None:
    assert main(["train", str(small_text), "--nproc", "0"]) == 2
    assert "not a whole number of at least 1" in capsys.readouterr().err
    status, err = done([*QKV, "train", small_text, *SMALL, SIZES, "--nproc", "3", "--out", tmp_path / "run"])
    assert status == 2 and not (tmp_path / "run").exists()
    assert [line for line in err.splitlines() if line] == [
        "qkv: --nproc is 3, but a batch of 8 windows cannot be shared equally among 3 processes; set batch_size to 6"
        " or 9 (--set batch_size=9)"
    ]
    status, err = done([*QKV, "train", small_text, *SMALL, SIZES, "--shard", "--out", tmp_path / "run"])
    assert status == 2 and not (tmp_path / "run").exists()
    assert "--shard shares weights out among processes, and this is one; give --nproc N with it" in err
    row = ["--nproc", "2", "--shard", "--freeze", "W_E[3]"]
    status, err = done([*QKV, "train", small_text, *SMALL, SIZES, *row, "--out", tmp_path / "run"])
    assert status == 2 and not (tmp_path / "run").exists()
    assert "--shard cannot freeze single heads or rows, as of W_E" in err
