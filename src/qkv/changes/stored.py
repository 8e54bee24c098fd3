"""Values for `load(...)`: from a safetensors file whose keys are addresses, a matrix of another run, or word vectors.

Word vectors (GloVe or word2vec) fill a table of tokens row by row: a token that the file does not have keeps the row
that it has when the change acts. Before the first step that is its start, by the preset's law and the seed, as earlier
changes left it; later what training has made of it. Nothing is ever unpickled.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from qkv.data.vectors import SUFFIXES, is_vector_file, read_vectors
from qkv.errors import AddressError, ChangeError, SourceError, unknown
from qkv.folder.verified import check_file
from qkv.models.addresses import parse_address
from qkv.models.matrices import Catalogue, Part


@dataclass(frozen=True, slots=True)
class RunMatrix:
    """A matrix (or head, or row) of a run at one of its snapshots."""

    run: str
    """Path of the run folder, as typed."""
    address: str
    step: int | None
    """None for the run's last weights."""
    vocabulary: Mapping[str, int] | None = field(default=None, repr=False)
    """Token -> row of the table that it is for; None where it is for no whole table of tokens."""


Loader = Callable[[RunMatrix], Tensor]
"""Finds a matrix of another run, as stored or in the field's shape. The caller supplies it: runs lie above this."""


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """What was read for a part of a matrix, in the storage's order."""

    values: Tensor
    """Of the whole part, or of `rows` alone."""
    rows: Tensor | None = None
    """int64, which rows of a table of tokens there is something for; None: everything."""
    axis: int = 0
    """Along which these rows lie."""

    def over(self, present: Tensor) -> Tensor:
        """The part with these values, of which the rows that nothing was read for stay as they are in `present`."""
        if self.rows is None:
            return self.values.to(present)
        return present.index_copy(self.axis, self.rows.to(present.device), self.values.to(present))


def stored_values(spec: str, part: Part, catalogue: Catalogue, loader: Loader | None) -> Stored:
    """What `load(spec)` gives to a part.

    `spec` is FILE.safetensors, FILE.safetensors:B, RUN:B, RUN:B@STEP, RUN for the same address there, or a file of word
    vectors (.txt, .vec or .bin, each also .gz).

    Raises ChangeError where nothing of that name can be read or the shapes differ.
    """
    if "\0" in spec:
        raise ChangeError(f"load({spec!r}): a path has no zero bytes")
    path, address, step = _parse(spec)
    if Path(path).suffix == ".safetensors":
        if step is not None:
            raise ChangeError(f"load({spec}): a file has no steps; expected {path}:{address}")
        found = Stored(_from_file(Path(path), address, part, catalogue))
    elif address is None and not Path(path).is_dir() and is_vector_file(Path(path)):
        found = _of_words(Path(path), part, catalogue)
    elif address is None and not Path(path).is_dir():
        kinds = f".safetensors can, or word vectors ({', '.join(SUFFIXES)})"
        why = f"cannot be read: only {kinds}" if Path(path).exists() else "does not exist"
        raise ChangeError(f"load({spec}): {path} {why}; expected FILE.safetensors or RUN:ADDRESS@STEP")
    elif loader is None:
        raise ChangeError(f"load({spec}): no other run can be read here; expected FILE.safetensors")
    else:
        address = address or part.address
        is_table = part.entry.kind in ("W_E", "W_U") and part.piece is None
        wanted = RunMatrix(path, address, step, catalogue.vocabulary if is_table else None)
        found = Stored(_fit(part, loader(wanted), f"{path}:{address}"))
    if not found.values.is_floating_point() or not bool(torch.isfinite(found.values).all()):
        raise ChangeError(f"load({spec}): expected finite floating-point values for {part.address}")
    return found


def loaded_path(spec: str) -> str:
    """The file or run folder that `load(spec)` reads; never raises."""
    match = re.fullmatch(r"(?s)(.+\.safetensors):[^/\\]+", spec)
    return match[1] if match else spec


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
    check_file(path)
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


def _of_words(path: Path, part: Part, catalogue: Catalogue) -> Stored:
    """The rows of a table of tokens, or its one row, that a file of word vectors has.

    A token is looked up as a person reads it, as it is written and then in lower case.
    """
    entry = part.entry
    if entry.divides != "row" or entry.kind not in ("W_E", "W_U") or catalogue.vocabulary is None:
        raise ChangeError(f"{part.address} is no table of tokens, so {path} has no rows for it; expected W_E or W_U")
    try:
        vectors = read_vectors(path)
    except SourceError as error:
        raise ChangeError(str(error)) from None
    width = entry.parameter.shape[1 - entry.axis]
    if vectors.width != width:
        raise ChangeError(
            f"the vectors of {path} have {vectors.width} numbers, rows of {entry.address} have {width};"
            f" give --set d_model={vectors.width}, or a file of that width"
        )
    found: dict[int, int | None] = {}
    for token, row in catalogue.vocabulary.items():  # a token may have several names, as "the" and "Ġthe"
        found[row] = vectors.row(token.strip()) if found.get(row) is None else found[row]
    pairs = [(row, there) for row, there in found.items() if there is not None and part.piece in (None, row)]
    if not pairs:
        whose = f"the {len(found):,} tokens of {entry.address}; is it of another language?"
        raise ChangeError(
            f"{path} has none of {whose}" if part.piece is None else f"{path} has no row for {part.address}"
        )
    rows, there = (torch.tensor(column) for column in zip(*pairs, strict=True))
    values = torch.from_numpy(vectors.values)[there].float()
    return Stored(values if entry.axis == 0 else values.t(), None if part.piece is not None else rows, entry.axis)


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
