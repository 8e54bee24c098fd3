"""A safetensors file whose bytes are laid out once and filled many times, for checkpoints that must not stall training.

The format is that of huggingface/safetensors: a length, a JSON header, the tensors' bytes. Its own library writes
through several copies; here the copy out of the model is the file's content, ready to be hashed and written in one go.
The library reads it back (and is the oracle of the tests).
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from qkv.errors import RunFolderError
from qkv.folder.run_folder import storage_errors
from qkv.folder.verified import check_weights

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
}
_IN_NUMPY = {name for dtype, name in _DTYPES.items() if dtype != torch.bfloat16}


class TensorFile:
    """The content of a safetensors file for tensors of these names, shapes and types."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._header, spans = _laid_out(tensors)
        end = max((end for _, end in spans.values()), default=0)
        self._data = torch.empty(end, dtype=torch.uint8)
        self._views = {
            name: self._data[start:end].view(tensors[name].dtype).view(tensors[name].shape)
            for name, (start, end) in spans.items()
        }

    def fill(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy the tensors' present values in."""
        assert tensors.keys() == self._views.keys()
        for name, view in self._views.items():
            view.copy_(tensors[name].detach())

    def chunks(self) -> list[bytes | memoryview]:
        """The whole file, in order; valid until the next `fill`."""
        return [self._header, self._data.numpy().data]


class SharedFile:
    """The same content, written by several processes at once: each writes its rows of every tensor at their place."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """`tensors` give names, shapes and types; their values are not read."""
        self._header, self._spans = _laid_out(tensors)
        self._rows = {name: t[0].numel() * t.element_size() if t.ndim and len(t) else 0 for name, t in tensors.items()}

    def begin(self, path: Path) -> None:
        """Make a file of the full length; one process does, before the others write."""
        with storage_errors(path), open(path, "wb") as file:
            file.write(self._header)
            file.truncate(len(self._header) + max((end for _, end in self._spans.values()), default=0))

    def put(self, path: Path, parts: Mapping[str, tuple[int, Tensor]]) -> None:
        """Write parts, each from a row on (0 for a scalar), and wait until they are on the disk."""
        with storage_errors(path), open(path, "r+b") as file:
            for name, (row, values) in parts.items():
                file.seek(len(self._header) + self._spans[name][0] + row * self._rows[name])
                file.write(values.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
            file.flush()
            os.fsync(file.fileno())


def _laid_out(tensors: Mapping[str, Tensor]) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """The header of a file of these tensors, and where each begins and ends behind it, in the order of the file."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    wide_first = sorted(tensors.items(), key=lambda item: -item[1].element_size())  # keeps every tensor aligned
    spans: dict[str, tuple[int, int]] = {}
    end = 0
    for name, tensor in wide_first:
        start, end = end, end + tensor.numel() * tensor.element_size()
        spans[name] = (start, end)
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, spans


def streamed(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """A file of these tensors, piece by piece, without a second copy of them in memory."""
    header, spans = _laid_out(tensors)
    yield header
    for name in spans:
        yield tensors[name].detach().contiguous().view(-1).view(torch.uint8).numpy().data


def load_rows(path: Path, rows: Mapping[str, tuple[tuple[int, ...], int, int]]) -> dict[str, Tensor]:
    """Of each tensor of a file the rows from one number up to and not with another, given (whole shape, from, to).

    A scalar is given whole. Nothing else of the file is held in memory.

    Raises RunFolderError where the file is missing or damaged, or holds other names or shapes.
    """
    try:
        with safe_open(path, framework="pt") as file:
            differing = sorted(rows.keys() ^ set(file.keys()))
            found: dict[str, Tensor] = {}
            for name, (shape, first, last) in {} if differing else rows.items():
                part = file.get_slice(name)
                if tuple(part.get_shape()) != tuple(shape):
                    differing.append(name)
                    break
                found[name] = part[first:last] if shape else file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}") from None
    if differing:
        raise RunFolderError(
            f"{path} is of another optimizer or model: {differing[0]} differs; resume with the run's own settings"
        )
    return found


@contextlib.contextmanager
def open_weights(path: Path, framework: str = "np") -> Iterator[Any]:
    """A file of weights, checked, to read single matrices from: what `safe_open` of safetensors gives.

    Raises RunFolderError where it is missing, DamagedFileError where its bytes are not those that were written, or its
    numbers are none that weights can be.
    """
    check_weights(path)
    try:
        with safe_open(path, framework=framework) as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}") from None


def load_weights(path: Path) -> dict[str, Tensor]:
    """The matrices in a file of weights, on the CPU, checked. Raises what `open_weights` raises."""
    check_weights(path)
    return load_tensors(path)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU, unchecked: of an optimizer, or of what has been hashed already.

    Raises RunFolderError where it is missing or no whole file.

    Read as NumPy arrays where NumPy has the type: of every tensor that safetensors 0.8 makes for torch two integers
    stay behind for good, and a live page reads files for as long as it is open.
    """
    try:
        with safe_open(path, framework="np") as file:
            names = list(file.keys())
            arrays = {name for name in names if file.get_slice(name).get_dtype() in _IN_NUMPY}
            found = {name: torch.from_numpy(file.get_tensor(name)) for name in names if name in arrays}
        if len(arrays) == len(names):
            return found
        return load_file(path)
    except (OSError, RuntimeError, SafetensorError) as error:  # RuntimeError: taken away between two looks at it
        raise RunFolderError(f"{path} cannot be read: {error}") from None
