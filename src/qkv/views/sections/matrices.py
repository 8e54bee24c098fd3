"""Weights as pictures: from the snapshots of a run to what a page can carry, with every reduction said.

A matrix too large to draw weight by weight is drawn in blocks, each the root mean square of its weights: nothing
cancels and nothing is skipped. Beside it goes a small part whose weights are exact, the rows and columns that moved
most. Reads safetensors through NumPy, one matrix at a time. A snapshot that cannot be read, or whose matrices are not
those of the last one, is left out; nothing is filled in.

A live page asks for one matrix, head or circuit at one step, every number of it: `matrix_of`.
"""

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from qkv.errors import DamagedFileError, RunFolderError, UserError
from qkv.folder.run_folder import RunFolder
from qkv.instruments.measures import singular_values
from qkv.models.factored import FactoredMatrix
from qkv.models.matrices import Catalogue
from qkv.models.parts import KINDS
from qkv.training.tensorfile import open_weights
from qkv.views.report.packed import Packed, pack
from qkv.views.viewer import Viewer

N_SNAPSHOTS = 6
BLOCK_BYTES = 450_000
"""Section for the pictures of all snapshots, as text; a page deflates them further."""
EXACT_BYTES = 450_000
"""The same for weights one by one, at the start and at the last step."""
EXACT_SIDES = (96, 80, 64, 56, 48, 40, 36, 32, 28, 24, 20, 16, 12, 8)
SPECTRUM_SIDE = 160
SIDES = (48, 40, 36, 32, 28, 24, 20, 16, 12, 8)
Role = Literal["E", "Q", "K", "V", "O", "MLP", "norm"]
"""Which of the page's fixed colours a matrix has; norm is for gains and norm biases."""
_ROLES: dict[str, Role] = {"Q": "Q", "K": "K", "V": "V", "O": "O", **dict.fromkeys("E pos type cls U".split(), "E")}
_ORDER = tuple("W_E W_pos W_rel W_Q W_K W_V W_O W_gate W_in W_out W_transform W_U W_cls".split())
"""Kinds in the order of the computation."""
_AXES = {
    "W_pos": ("positions", "d_model"),
    "W_rel": ("distances", "heads"),
    "W_U": ("d_model", "tokens"),
    "W_O": ("heads × d_head", "d_model"),
    "W_in": ("d_model", "d_mlp"),
    "W_gate": ("d_model", "d_mlp"),
    "W_out": ("d_mlp", "d_model"),
}
MOST_NUMBERS = 1_200_000
"""Of one matrix that are sent at once; of a longer one the first rows."""
WIDEST_SPECTRUM = 2048


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExactBlock:
    """A small part of a matrix, every weight as stored."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    start: Packed | None
    last: Packed
    chosen: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatrixPicture:
    """One matrix at the snapshots: how large the weights are, and how far they have moved, block by block."""

    address: str
    shape: tuple[int, ...]
    reduction: str
    block: tuple[int, int]
    size: Packed
    """[snapshot, row block, column block]: root mean square of the weights in a block."""
    change: Packed | None
    """[snapshot, row block, column block]: root mean square of (weights - start) in a block."""
    axes: tuple[str, str] = ("in", "out")
    n_heads: int = 0
    head_axis: int = 1
    exact: ExactBlock | None = None
    spectrum: Packed | None = None
    """[snapshot, rank]: singular values, falling; None where they would take too long."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatricesSection:
    """Pictures of the weights at the snapshots."""

    steps: tuple[int, ...]
    items: tuple[MatrixPicture, ...]


def short_kind(address: str) -> str:
    """The address without scope and layer: `L0.norm1.gain` -> `norm1.gain`."""
    return re.sub(r"^(?:enc\.|dec\.)?(?:L\d+\.)?", "", address)


def role_of(kind: str) -> Role:
    """The colour of a kind of matrix."""
    last = kind.split(".")[-1]
    if last in ("gain", "bias"):
        return "norm"
    return _ROLES.get(last.partition("_")[2], "MLP")


class Snapshots:
    """The weights of a run at the steps that were kept, read one matrix at a time.

    `steps` are in order; the last is the final model where there is one, the weights of `last_step`, or where that is
    None of the newest checkpoint. `shapes` are by address, as stored.
    """

    def __init__(self, folder: Path, last_step: int | None) -> None:
        self._paths, final = RunFolder(folder).weights(last_step), RunFolder(folder).model
        self.damaged: list[str] = []
        """A sentence for each checkpoint that cannot be used."""
        shapes = {step: self._shapes(path) for step, path in self._paths.items()}
        last = max([last_step or 0, *self._paths])
        if final.is_file() and (found := self._shapes(final)):  # else the checkpoint of that step, where that is whole
            self._paths[last], shapes[last] = final, found
        readable = sorted(step for step, found in shapes.items() if found)
        self.shapes: dict[str, tuple[int, ...]] = shapes[readable[-1]] if readable else {}
        self.steps: list[int] = [step for step in readable if shapes[step] == self.shapes]

    def _shapes(self, path: Path) -> dict[str, tuple[int, ...]]:
        """Every matrix in a file with its shape; nothing of a file that is damaged, which is noted."""
        try:
            with open_weights(path) as file:
                return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        except DamagedFileError as error:
            self.damaged.append(str(error))
            return {}
        except RunFolderError:  # taken away meanwhile
            return {}

    @property
    def has_start(self) -> bool:
        """Whether the weights before the first update were kept."""
        return bool(self.steps) and self.steps[0] == 0

    @property
    def token_table(self) -> str:
        """Address of the table that tokens enter by; that of the source where there are two."""
        return "W_E" if "W_E" in self.shapes else "enc.W_E"

    def read(self, address: str, step: int) -> np.ndarray:
        """One of `shapes` at one of `steps`, as stored, in float32."""
        with open_weights(self._paths[step]) as file:
            return np.asarray(file.get_tensor(address), dtype=np.float32)

    def spread(self, n: int) -> list[int]:
        """At most `n` of the steps: the first, the last, and between them as evenly in log(1 + step) as there are."""
        if len(self.steps) <= n:
            return list(self.steps)
        logs = np.log1p(self.steps)
        wanted = np.linspace(logs[0], logs[-1], n)
        chosen: list[int] = []
        for target in wanted:
            left = [i for i in range(len(self.steps)) if i not in chosen]
            chosen.append(min(left, key=lambda i: abs(logs[i] - target)))
        return [self.steps[i] for i in sorted(chosen)]


def blocks_rms(matrix: np.ndarray, block: tuple[int, int]) -> np.ndarray:
    """Root mean square of the weights in each block: [rows, columns] -> [ceil(rows / block), ceil(columns / block)]."""
    squares = np.square(matrix, dtype=np.float64)
    for axis, size in enumerate(block):
        edges = np.arange(0, matrix.shape[axis], size)
        squares = np.add.reduceat(squares, edges, axis=axis)
        counts = np.diff(np.append(edges, matrix.shape[axis]))
        squares /= counts[:, None] if axis == 0 else counts[None, :]
    return np.sqrt(squares)


def _side(sides: Sequence[int], shapes: Sequence[tuple[int, ...]], bytes_a_cell: int, bytes_allowed: int) -> int:
    """The largest of `sides` at which all matrices fit; four thirds of their bytes as text."""
    for side in sides:
        cells = sum(min(side, rows) * min(side, columns) for rows, columns in shapes)
        if cells * bytes_a_cell * 4 / 3 <= bytes_allowed:
            return side
    return sides[-1]


def matrices_section(
    snapshots: Snapshots,
    heads: dict[str, int],
    *,
    inputs: str = "tokens",
    block_bytes: int = BLOCK_BYTES,
    exact_bytes: int = EXACT_BYTES,
) -> MatricesSection | None:
    """Pictures of every matrix at a few snapshots; None where no weights can be read.

    `heads` is the number of heads by kind (W_Q, W_K, W_V, W_O), `inputs` what the rows of W_E stand for. Shapes are as
    stored, [in, out].
    """
    addresses = [name for name, shape in snapshots.shapes.items() if len(shape) == 2 and min(shape) > 1]
    if not addresses:
        return None
    steps = snapshots.spread(N_SNAPSHOTS)
    shapes = [snapshots.shapes[a] for a in addresses]
    side = _side(SIDES, shapes, 2 * len(steps), block_bytes)
    exact = _side(EXACT_SIDES, shapes, 2 * 4, exact_bytes)
    ordered = sorted(addresses, key=_canonical)
    items = tuple(_picture(snapshots, address, steps, side, exact, heads, inputs) for address in ordered)
    return MatricesSection(steps=tuple(steps), items=items)


def _canonical(address: str) -> tuple[bool, int, int]:
    """Tables in first, then layers in order, then what comes out; kinds in the order of the computation. Of an
    encoder-decoder all of the encoder comes before the decoder."""
    match = re.search(r"(?:^|\.)L(\d+)\.", address)
    kind = short_kind(address).split(".")[-1]
    rank = _ORDER.index(kind) if kind in _ORDER else len(_ORDER)
    is_out = kind in KINDS and KINDS[kind].site == "head"
    layer = int(match[1]) if match else (10**6 if is_out else -1)
    return address.startswith("dec.") or is_out, layer, rank


def _picture(
    snapshots: Snapshots, address: str, steps: list[int], side: int, exact_side: int, heads: dict[str, int], inputs: str
) -> MatrixPicture:
    """One matrix at `steps`, in at most `side` blocks each way, and `exact_side` rows and columns exactly."""
    start = snapshots.read(address, 0) if snapshots.has_start else None
    shape = snapshots.shapes[address]
    block = -(-shape[0] // side), -(-shape[1] // side)  # the smallest that leave at most `side` along each axis
    size, change, last = [], [], start
    for step in steps:
        last = snapshots.read(address, step)
        size.append(blocks_rms(last, block))
        if start is not None:
            change.append(blocks_rms(last - start, block))
    assert last is not None
    kind = short_kind(address)
    axes = {**_AXES, "W_E": (inputs, "d_model")}
    many = f"the root mean square of {block[0]} × {block[1]} weights"
    reduction = f"one cell is {'one weight, its size' if block == (1, 1) else many}"
    return MatrixPicture(
        address=address,
        shape=tuple(shape),
        reduction=f"{reduction}, kept in 256 steps: two digits.",
        block=block,
        size=_in_bytes(size),
        change=_in_bytes(change) if change else None,
        axes=axes.get(kind.split(".")[-1], ("in", "heads × d_head" if role_of(kind) in "QKV" else "out")),
        n_heads=heads.get(kind.split(".")[-1], 0),
        head_axis=0 if kind.endswith("W_O") else 1,
        exact=_exact(start, last, exact_side),
        spectrum=_spectra(snapshots, address, steps),
    )


def _spectra(snapshots: Snapshots, address: str, steps: Sequence[int]) -> Packed | None:
    """Singular values at each step, of a matrix narrow enough that a page need not wait for them."""
    rows, columns = snapshots.shapes[address]
    if min(rows, columns) > SPECTRUM_SIDE:
        return None
    found = [singular_values(torch.from_numpy(snapshots.read(address, step))).numpy() for step in steps]
    return pack(np.stack(found)) if np.isfinite(found).all() else None


def _in_bytes(pictures: list[np.ndarray]) -> Packed:
    """Pictures of all snapshots on one scale; a run whose weights are not finite keeps its gaps, as float32."""
    stack = np.stack(pictures)
    return pack(stack, as_bytes=bool(np.isfinite(stack).all()))


def _exact(start: np.ndarray | None, last: np.ndarray, side: int) -> ExactBlock:
    """The `side` rows and columns that moved most (without a start: that are largest), in order, every weight exact."""
    moved = np.nan_to_num(np.square(last if start is None else last - start))
    rows = np.sort(np.argsort(-moved.sum(1), kind="stable")[:side])
    columns = np.sort(np.argsort(-moved[rows].sum(0), kind="stable")[:side])
    cut = np.ix_(rows, columns)
    whole = moved.shape[0] <= side and moved.shape[1] <= side
    some = f"{len(rows)} rows and {len(columns)} columns"
    most = "are largest" if start is None else "moved furthest from their start"
    what = "the whole matrix" if whole else f"the {some} that {most}" if moved.any() else f"the first {some}"
    page = f"A file has room for {side} × {side} of each matrix; `qkv view` shows all."
    return ExactBlock(
        rows=tuple(int(i) for i in rows),
        columns=tuple(int(i) for i in columns),
        start=None if start is None else pack(start[cut]),
        last=pack(last[cut]),
        chosen=what[0].upper() + what[1:] + f", every weight as stored.{'' if whole else ' ' + page}",
    )


@dataclass(frozen=True)
class MatrixAnswer:
    """A matrix in the field's shape (heads [d_model, d_head], of W_O [d_head, d_model]; W_E [tokens, d_model])."""

    address: str
    step: int
    shape: tuple[int, int]
    values: Packed
    """float32 [rows, columns], the first rows where not all fit."""
    start: Packed | None
    """The same at step 0, where it was kept."""
    start_step: int
    spectrum: Packed | None
    """float32, singular values, falling; None for a matrix too wide to take them at once."""
    start_spectrum: Packed | None
    notes: tuple[str, ...]
    """What this product leaves out (circuits), or what was cut."""


def matrix_of(viewer: Viewer, address: str, step: int | None) -> MatrixAnswer:
    """The numbers behind an address. Raises AddressError for one that this model does not have."""
    at, steps = viewer.nearest(step), viewer.steps()
    now, notes = _read(viewer.catalogue(at), viewer, address)
    first = steps[0] if steps else at
    start = _read(viewer.catalogue(first), viewer, address)[0] if first < at else None
    table, before = _table(now), None if start is None else _table(start)
    rows = min(len(table), max(1, MOST_NUMBERS // max(1, table.shape[1])))
    if rows < len(table):
        notes = (*notes, f"The first {rows:,} of {len(table):,} rows.")
    return MatrixAnswer(
        address=address,
        step=at,
        shape=(int(table.shape[0]), int(table.shape[1])),
        values=pack(table[:rows]),
        start=None if before is None else pack(before[:rows]),
        start_step=first,
        spectrum=_spectrum(now),
        start_spectrum=None if start is None else _spectrum(start),
        notes=notes,
    )


def _read(catalogue: Catalogue, viewer: Viewer, address: str) -> tuple[torch.Tensor | FactoredMatrix, tuple[str, ...]]:
    if address.rpartition(".")[2] in ("QK", "OV"):
        circuit = catalogue.circuit(address)
        return circuit, tuple(circuit.caveats(viewer.config.model.layout if viewer.has_code else None))
    part = catalogue.part(address)
    values = (part.entry.parameter if part.piece is None else part.view()).detach()
    if values.ndim > 2:
        raise UserError(f"{address} has {values.ndim} axes; expected a matrix or one head of it")
    if part.entry.transposed and part.piece is None:
        values = values.T
    return values, ()


def _table(values: torch.Tensor | FactoredMatrix) -> np.ndarray:
    with torch.no_grad():
        table = values.product() if isinstance(values, FactoredMatrix) else values
    table = table.float()
    return (table[None] if table.ndim == 1 else table).numpy()


def _spectrum(values: torch.Tensor | FactoredMatrix) -> Packed | None:
    """Singular values; of a product from its factors."""
    if isinstance(values, FactoredMatrix):
        return pack(values.singular_values().detach().numpy())
    if values.ndim < 2 or min(values.shape) > WIDEST_SPECTRUM:
        return None
    return pack(singular_values(values).numpy())
