"""Several processes train what one does: weights, optimizer state, losses and measures, whatever the task."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from qkv.errors import ConfigError
from qkv.training.config import TrainingConfig
from qkv.training.distributed.ranks import ALONE, Ranks, check_shares, join

CASES = ("muon", "adamw", "sgd", "masked", "frozen", "changed", "stopped", "shared", "translate", "classify")
WORLDS = (2, 4)


@pytest.fixture(scope="module", params=["whole", "sharded"])
def trained(request, tmp_path_factory, small_text, small_pairs) -> Path:
    """The results of `ranked.py`, of processes that hold whole weights or share them out."""
    out = tmp_path_factory.mktemp(request.param)
    options = ["--shard"] if request.param == "sharded" else []
    labelled = out / "labelled.tsv"
    lines = small_text.read_text(encoding="utf-8").splitlines()[:400]
    labelled.write_text("text\tlabel\n" + "".join(f"{line}\t{'king' in line}\n" for line in lines), encoding="utf-8")
    script = Path(__file__).with_name("ranked.py")
    done = subprocess.run(
        [sys.executable, script, out, small_text, *small_pairs, labelled, *options],
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def result(out: Path, case: str, world: int, rank: int = 0) -> dict[str, np.ndarray]:
    if case == "frozen" and out.name.startswith("sharded"):
        pytest.skip("it freezes a single row, which a sharded training refuses")
    with np.load(out / f"{case}-{world}-{rank}.npz") as found:
        return dict(found)


def furthest(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """The largest difference of any number."""
    assert one.keys() == other.keys()
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


@pytest.mark.cluster
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("case", CASES)
def test_ranks_train_what_one_process_does(trained: Path, case: str, world: int) -> None:
    alone, shared = result(trained, case, 1), result(trained, case, world)
    assert len(alone["losses"]) == 20 * 3 + 3
    assert furthest(alone, shared) < 1e-10
    start = result(trained, case, 1)["losses"]
    assert start[-1] < start[0], "it learns nothing"


@pytest.mark.cluster
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("case", ["muon-fp32", "adamw-fp32"])
def test_in_float32_they_differ_by_rounding_alone(trained: Path, case: str, world: int) -> None:
    alone, shared = result(trained, case, 1), result(trained, case, world)
    assert np.abs(alone["losses"] - shared["losses"]).max() < 2e-4
    assert furthest(alone, shared) > 0  # sums are taken in another order


@pytest.mark.cluster
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("case", [*CASES, "muon-fp32"])
def test_every_rank_keeps_the_same_bits(trained: Path, case: str, world: int) -> None:
    first = result(trained, case, world)
    for rank in range(1, world):
        other = result(trained, case, world, rank)
        assert all(first[name].tobytes() == other[name].tobytes() for name in first)


@pytest.mark.cluster
@pytest.mark.parametrize("world", WORLDS)
def test_instruments_read_what_they_read_of_one_process(trained: Path, world: int) -> None:
    def rows(number: int) -> list[tuple]:
        with sqlite3.connect(trained / f"watched-{number}.sqlite") as database:
            return database.execute("SELECT * FROM measurements ORDER BY 1, 2, 3, 4").fetchall()

    alone, shared = rows(1), rows(world)
    assert len(alone) == len(shared) > 1000
    numbers = [np.array(part, dtype=np.float64) for part in (alone, shared)]  # NULL is NaN
    np.testing.assert_allclose(numbers[1], numbers[0], rtol=1e-6, atol=1e-7)


def test_a_batch_is_shared_equally_and_in_order() -> None:
    examples = np.arange(24, 36)
    shares = [Ranks(rank, 3).share(examples) for rank in range(3)]
    assert np.array_equal(np.concatenate(shares), examples)
    assert {len(share) for share in shares} == {4}
    assert np.array_equal(ALONE.share(examples), examples)


def test_alone_nothing_is_asked_of_others() -> None:
    parameter = torch.ones(3, requires_grad=True)
    parameter.grad = torch.arange(3.0)
    ALONE.sum_gradients([parameter])
    ALONE.compare([parameter], 1)
    ALONE.meet()
    assert parameter.grad.tolist() == [0, 1, 2]
    assert ALONE.sum(1.5, 2) == (1.5, 2) and ALONE.highest(3) == 3 and ALONE.tell({"a": 1}) == {"a": 1}


@pytest.mark.parametrize(
    ("world", "words"),
    [(9, "at most 8 processes"), (3, "set batch_size to 6 or 9"), (5, "set batch_size to 5 or 10")],
)
def test_a_batch_that_cannot_be_shared_says_what_would_fit(world: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_shares(TrainingConfig(batch_size=8), world, "windows")
    for fits in (1, 2, 4, 8):
        check_shares(TrainingConfig(batch_size=8), fits, "windows")


def test_variables_that_make_no_sense_are_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "one")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="RANK=one, WORLD_SIZE=2"):
        join()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert join() is ALONE
