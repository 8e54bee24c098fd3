"""Values for `load(...)`: from a safetensors file whose keys are addresses, or from a matrix of another run.

Only safetensors are read; nothing is ever unpickled.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from qkv.errors import AddressError, ChangeError, unknown
from qkv.models.addresses import parse_address
from qkv.models.matrices import Catalogue, Part

__all__ = ["Loader", "RunMatrix", "stored_values"]


@dataclass(frozen=True, slots=True)
class RunMatrix:
    """A matrix (or head, or row) of a run at one of its snapshots."""

    run: str
    """Path of the run folder, as typed."""
    address: str
    step: int | None
    """None for the run's last weights."""


Loader = Callable[[RunMatrix], Tensor]
"""Finds a matrix of another run, as stored or in the field's shape. The caller supplies it: runs lie above this."""


def stored_values(spec: str, part: Part, catalogue: Catalogue, loader: Loader | None) -> Tensor:
    """The values that `load(spec)` gives to a part, in the storage's order.

    `spec` is FILE.safetensors, FILE.safetensors:B, RUN:B, RUN:B@STEP, or RUN for the same address there.

    Raises ChangeError where nothing of that name can be read or the shapes differ.
    """
    if "\0" in spec:
        raise ChangeError(f"load({spec!r}): a path has no zero bytes")
    path, address, step = _parse(spec)
    if Path(path).suffix == ".safetensors":
        if step is not None:
            raise ChangeError(f"load({spec}): a file has no steps; expected {path}:{address}")
        values = _from_file(Path(path), address, part, catalogue)
    elif address is None and not Path(path).is_dir():
        found = "cannot be read: only .safetensors can" if Path(path).exists() else "does not exist"
        raise ChangeError(f"load({spec}): {path} {found}; expected FILE.safetensors or RUN:ADDRESS@STEP")
    elif loader is None:
        raise ChangeError(f"load({spec}): no other run can be read here; expected FILE.safetensors")
    else:
        address = address or part.address
        values = _fit(part, loader(RunMatrix(path, address, step)), f"{path}:{address}")
    if not values.is_floating_point() or not bool(torch.isfinite(values).all()):
        raise ChangeError(f"load({spec}): expected finite floating-point values for {part.address}")
    return values


def _parse(spec: str) -> tuple[str, str | None, int | None]:
    """Path, address and step; a drive letter's colon is part of the path."""
    match = re.fullmatch(r"(?s)(.+):([^/\\]+?)(?:@([0-9]{1,12}))?", spec)
    if match is None or spec.endswith(".safetensors"):
        return spec, None, None
    try:
        parse_address(match[2])
    except AddressError as error:
        raise ChangeError(f"load({spec}): {error}") from None
    return match[1], match[2], None if match[3] is None else int(match[3])


def _from_file(path: Path, address: str | None, part: Part, catalogue: Catalogue) -> Tensor:
    """One tensor of a file: the given key, or the part's own address, or a piece of the whole matrix's."""
    try:
        with safe_open(path, framework="pt") as file:
            keys = list(file.keys())
            if address is not None or part.address in keys:
                name = address or part.address
                if name not in keys:
                    raise ChangeError(f"{path}: {unknown('address', name, keys)}")
                return _fit(part, file.get_tensor(name), f"{path}:{name}")
            name = next((name for name in catalogue.names(part.entry.address) if name in keys), None)
            if name is None:
                raise ChangeError(f"{path}: {unknown('address', part.address, keys)}")
            return part.of(_fit(Part(name, catalogue.entry(name)), file.get_tensor(name), f"{path}:{name}"))
    except (SafetensorError, OSError) as error:
        raise ChangeError(f"{path} cannot be read as safetensors: {error}") from None


def _fit(part: Part, values: Tensor, name: str) -> Tensor:
    """Values as stored or in the field's shape, brought into the storage's order."""
    buffer = torch.empty(part.entry.parameter.shape, dtype=values.dtype)
    as_stored, as_shown = part.of(buffer), part.shaped(buffer)
    if values.shape == as_stored.shape and not part.entry.transposed:
        return values
    if values.shape != as_shown.shape:
        raise ChangeError(f"{part.address} is {list(as_stored.shape)}; {name} is {list(values.shape)}")
    as_shown.copy_(values)
    return as_stored
