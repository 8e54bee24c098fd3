"""Weights shared out among processes: rows, owners, files written together, refusals. Trainings: test_ranks."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from qkv.errors import ConfigError, RunFolderError
from qkv.training.distributed.ranks import Ranks
from qkv.training.distributed.shards import check_shard, hollow, hollow_like, owners, rows_of_rank
from qkv.training.precision import Machine
from qkv.training.tensorfile import SharedFile, TensorFile, load_rows

TENSORS = {
    "W_E": torch.arange(7 * 3, dtype=torch.float32).reshape(7, 3),
    "gain": torch.arange(5, dtype=torch.float64),
    "updates": torch.tensor(12.0),
    "one": torch.tensor([[2.5, -1.0]]),
}


@pytest.mark.parametrize("world", [1, 2, 3, 4, 9])
def test_rows_of_all_ranks_are_all_rows_once_and_as_torch_chunks_them(world: int) -> None:
    for whole in TENSORS.values():
        if whole.ndim:
            spans = [rows_of_rank(whole, Ranks(rank, world)) for rank in range(world)]
            assert torch.equal(torch.cat([whole[a:b] for a, b in spans]), whole)
            chunks = whole.chunk(world)
            assert [b - a for a, b in spans] == [len(c) for c in chunks] + [0] * (world - len(chunks))
    assert rows_of_rank(TENSORS["updates"], Ranks(0, world)) == (0, 0)


def test_each_matrix_has_one_owner_and_the_work_is_shared_evenly() -> None:
    sizes = [(64, 64)] * 8 + [(64, 256), (256, 64)] * 4
    owner = owners(sizes, 4)
    assert owner == owners(sizes, 4) and set(owner) == {0, 1, 2, 3}
    loads = [sum(a * b * min(a, b) for (a, b), o in zip(sizes, owner, strict=True) if o == rank) for rank in range(4)]
    assert max(loads) == min(loads)
    assert owners(sizes[:1], 4) == [0] and owners([], 4) == []


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_a_file_that_several_processes_write_is_that_of_one(world: int, tmp_path: Path) -> None:
    path, alone = tmp_path / "shared.safetensors", TensorFile(TENSORS)
    alone.fill(TENSORS)
    file = SharedFile({name: hollow_like(t) for name, t in TENSORS.items()})
    file.begin(path)
    for rank in reversed(range(world)):  # in any order
        ranks = Ranks(rank, world)
        parts = {
            name: (rows_of_rank(t, ranks)[0], t[slice(*rows_of_rank(t, ranks))] if t.ndim else t)
            for name, t in TENSORS.items()
        }
        file.put(path, {name: part for name, part in parts.items() if TENSORS[name].ndim or rank == 0})
    assert path.read_bytes() == b"".join(bytes(chunk) for chunk in alone.chunks())
    assert all(torch.equal(load_file(path)[name], t) for name, t in TENSORS.items())


@pytest.mark.parametrize("world", [1, 2, 4])
def test_a_rank_reads_its_rows_of_a_file_of_any_number(world: int, tmp_path: Path) -> None:
    path = tmp_path / "whole.safetensors"
    save_file(TENSORS, path)
    for rank in range(world):
        rows = {name: (tuple(t.shape), *rows_of_rank(t, Ranks(rank, world))) for name, t in TENSORS.items()}
        found = load_rows(path, rows)
        for name, (_, first, last) in rows.items():
            expected = TENSORS[name][first:last] if TENSORS[name].ndim else TENSORS[name]
            assert torch.equal(found[name], expected) and found[name].shape == expected.shape


def test_rows_of_another_model_or_a_torn_file_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "whole.safetensors"
    save_file(TENSORS, path)
    rows = {name: (tuple(t.shape), 0, len(t) if t.ndim else 0) for name, t in TENSORS.items()}
    with pytest.raises(RunFolderError, match="of another optimizer or model: W_E differs"):
        load_rows(path, {**rows, "W_E": ((8, 3), 0, 8)})
    with pytest.raises(RunFolderError, match="more differs"):
        load_rows(path, {**rows, "more": ((1,), 0, 1)})
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(RunFolderError, match="cannot be read"):
        load_rows(path, rows)
    with pytest.raises(RunFolderError, match="cannot be read"):
        load_rows(tmp_path / "none", rows)


def test_a_hollow_tensor_has_its_shape_and_takes_no_memory() -> None:
    parameter = torch.nn.Parameter(torch.ones(300, 400))
    hollow(parameter)
    assert parameter.shape == (300, 400) and parameter.requires_grad
    assert parameter.untyped_storage().nbytes() == 4


@pytest.mark.parametrize(
    ("machine", "held", "words"),
    [
        ({"ranks": 1}, "", "give --nproc N with it"),
        ({"compile": True}, "", "leave machine.compile out"),
        ({"device": "mps"}, "", "--device cpu or cuda"),
        ({}, "W_E", "as of W_E: its rows lie with several processes; freeze the whole matrix"),
    ],
)
def test_what_does_not_fit_is_one_sentence(machine: dict, held: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_shard(Machine(**({"ranks": 2, "shard": True} | machine)), held)
    check_shard(Machine(**({"ranks": 2, "shard": False} | machine)), held)
    check_shard(Machine(ranks=2, shard=True))
