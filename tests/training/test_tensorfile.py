"""Our safetensors files are read by the library that defines the format."""

import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from qkv.errors import RunFolderError
from qkv.folder.run_folder import write_atomically
from qkv.training.tensorfile import TensorFile, load_tensors

TENSORS = {
    "L0.W_Q": torch.randn(3, 5),
    "count": torch.tensor(7.0),
    "wide": torch.randn(3, dtype=torch.float64),
    "half": torch.randn(3).bfloat16(),
    "turned": torch.randn(4, 6).T,
    "empty": torch.zeros(0, 3),
    "ids": torch.arange(5),
}


def test_the_library_reads_back_what_was_filled_in(tmp_path: Path) -> None:
    file = TensorFile(TENSORS)
    for round_number in range(2):
        changed = {name: tensor + round_number for name, tensor in TENSORS.items()}
        file.fill(changed)
        write_atomically(tmp_path / "a.safetensors", file.chunks())
        loaded = load_tensors(tmp_path / "a.safetensors")
        assert loaded.keys() == TENSORS.keys()
        for name, tensor in changed.items():
            assert loaded[name].dtype == tensor.dtype and torch.equal(loaded[name], tensor)
    with safe_open(tmp_path / "a.safetensors", "pt") as opened:
        assert opened.metadata() == {"format": "pt"}


def test_no_tensors_make_a_valid_file(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.safetensors", TensorFile({}).chunks())
    assert load_tensors(tmp_path / "a.safetensors") == {}


def test_the_file_holds_copies(tmp_path: Path) -> None:
    weight = torch.zeros(4)
    file = TensorFile({"W": weight})
    file.fill({"W": weight})
    weight += 1
    write_atomically(tmp_path / "a.safetensors", file.chunks())
    assert not load_tensors(tmp_path / "a.safetensors")["W"].any()


def test_a_type_that_numpy_has_not_is_read(tmp_path: Path) -> None:
    kept = {"a": torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn), "b": torch.zeros(2)}
    save_file(kept, tmp_path / "a.safetensors")
    assert load_tensors(tmp_path / "a.safetensors")["a"].dtype == torch.float8_e4m3fn


def test_reading_again_and_again_keeps_nothing(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.safetensors", TensorFile({f"W{i}": torch.zeros(2, 2) for i in range(50)}).chunks())
    for _ in range(50):  # what is kept of the first reads for good: interned names, free lists
        load_tensors(tmp_path / "a.safetensors")
    before = sys.getallocatedblocks()
    for _ in range(100):
        load_tensors(tmp_path / "a.safetensors")
    assert sys.getallocatedblocks() - before < 100 * 50


@pytest.mark.parametrize("data", [b"", b"x" * 100, (10**6).to_bytes(8, "little") + b"{}"])
def test_a_damaged_file_is_a_clear_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.safetensors").write_bytes(data)
    with pytest.raises(RunFolderError, match="cannot be read"):
        load_tensors(tmp_path / "a.safetensors")
    with pytest.raises(RunFolderError, match="cannot be read"):
        load_tensors(tmp_path / "missing.safetensors")
