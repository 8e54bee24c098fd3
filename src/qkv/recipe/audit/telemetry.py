"""Does the telemetry of a run agree with the weights and states that it kept?

Cells are chosen at random by a seed, read from the telemetry, and computed again from the snapshots of their steps:
norms, drifts and spectra in float64, to 1e-6 of their size; an angle to 0.03 degrees, the stated error of recording it.
Weights as every view reads them are compared with the bytes in the file, bit for bit. What needs gradients
(`grad_norm`, `update_ratio`) is compared by replay.
"""

import contextlib
import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor

from qkv.errors import AddressError, DamagedFileError, RunFolderError
from qkv.folder.run_folder import RunFolder
from qkv.inspection.stored_run import stored
from qkv.instruments import measures
from qkv.instruments.registry import MEASURES, SPECTRAL
from qkv.models import build
from qkv.models.factored import FactoredMatrix
from qkv.models.matrices import Catalogue
from qkv.randomness import generator
from qkv.recipe.audit.verdict import Check, Fault
from qkv.recipe.config import RunConfig
from qkv.telemetry import Grid, Telemetry
from qkv.training.checkpoint import Standing
from qkv.training.tensorfile import load_tensors

_TOLERANCE = 1e-6
_DEGREES = 0.03
_FILE = "telemetry.sqlite"
_AGAIN: Mapping[str, Callable[[Tensor, Tensor, int], float | None]] = {
    "norm": lambda now, start, n_in: measures.norm(now),
    "drift": measures.drift,
    "turn": lambda now, start, n_in: measures.turn(now, start),
    "spectral_norm": lambda now, start, n_in: measures.spectral_norm(now),
    "stable_rank": lambda now, start, n_in: measures.stable_rank(now),
    "effective_rank": lambda now, start, n_in: measures.effective_rank(now),
}
"""Measures that weights alone tell -> how to compute them from a matrix now and at step 0, and the input width of the
matrix that they are a part of (0: they are all of it)."""


def check_telemetry(folder: RunFolder, config: RunConfig, found: list[Standing], *, cells: int, seed: int) -> Check:
    """Rows without gaps that agree with every checkpoint, and random cells computed again."""
    check = partial(Check, name="telemetry", what="numbers of the telemetry against checkpoints and snapshots")
    faults: list[Fault] = []
    compared = 0
    begun = folder.is_finished or any(one.step or not config.watched for one in found)
    if not folder.is_finished and not found and not config.watched:  # killed while it made its tables
        return check(compared=0, unchecked=("there is no whole checkpoint to compare with",))
    nothing = check(compared=0, unchecked=("it ended before anything was recorded",))
    if not begun and not (folder.telemetry.exists() and folder.telemetry.stat().st_size):
        return nothing  # killed between its first files
    try:
        with Telemetry(folder.telemetry, altered=True) as telemetry:
            faults += [Fault(file=_FILE, sentence=sentence) for sentence in telemetry.faults()]
            compared += 0 if config.history else _rows(telemetry, folder, found, faults)
            usable = {one.step: one for one in found if one.has_weights}
            compared += _weights_as_read(folder, usable, seed, faults)
            compared += _cells(telemetry, config, usable, cells, seed, faults)
            older = set(_otherwise(telemetry)) & {row.name for row in telemetry.measures()}
    except (RunFolderError, AddressError) as error:  # an address that is none
        if not begun and isinstance(error, RunFolderError) and not isinstance(error, DamagedFileError):
            return nothing  # the power went before its tables were on the disk
        return check(compared=compared, faults=(Fault(file=_FILE, sentence=str(error)),))
    unchecked = ["--watch off recorded no matrix"] if config.watch == "off" else []
    unchecked += [f"{name} was recorded by another formula than today's" for name in sorted(older)]
    return check(compared=compared, faults=tuple(faults), unchecked=tuple(unchecked))


def _rows(telemetry: Telemetry, folder: RunFolder, found: list[Standing], faults: list[Fault]) -> int:
    """Updates are numbered 1, 2, 3, ...; tokens, losses and the best of them are those of every checkpoint."""
    steps, evaluations = telemetry.steps(), {e.step: e for e in telemetry.evaluations()}
    if not folder.is_finished:  # a resume makes the later ones again
        steps = telemetry.steps(at=steps.step[steps.step <= (found[-1].step if found else 0)])
    gaps = np.flatnonzero(steps.step != np.arange(1, len(steps.step) + 1))
    if len(gaps):
        faults.append(Fault(file=_FILE, step=int(gaps[0]) + 1, sentence="the row of this update is missing"))
        return len(steps.step)
    if (np.diff(steps.tokens) < 0).any():
        step = int(np.flatnonzero(np.diff(steps.tokens) < 0)[0]) + 2
        faults.append(Fault(file=_FILE, step=step, sentence="fewer tokens have been seen than one update before"))
    newest = found[-1].step if found else 0
    if len(steps.step) < newest or (folder.is_finished and found and len(steps.step) != newest):
        words = f"it has rows of {len(steps.step)} updates, and the newest checkpoint is of step {newest}"
        faults.append(Fault(file=_FILE, step=newest, sentence=words))
        return len(steps.step)
    for one in found:
        state = one.state
        if state is None:
            continue
        if state.step and int(steps.tokens[state.step - 1]) != state.tokens:
            words = f"{int(steps.tokens[state.step - 1])} tokens, but its checkpoint says {state.tokens}"
            faults.append(Fault(file=_FILE, step=one.step, sentence=words))
        for step, loss, name in (
            (state.evaluated_step, state.last_loss, "validation"),
            (state.best_step, state.best_loss, "best validation"),
        ):
            row = evaluations.get(step)
            if step >= 0 and (row is None or row.loss != loss):
                words = f"the {name} loss is {row.loss if row else 'missing'}, but the checkpoint of {one.step}: {loss}"
                faults.append(Fault(file=_FILE, step=step, sentence=words))
    return len(steps.step) + len(evaluations)


def _weights_as_read(folder: RunFolder, usable: Mapping[int, Standing], seed: int, faults: list[Fault]) -> int:
    """Random weights, as reports and pages read them, against the bytes of the file."""
    if not usable:
        return 0
    draws, compared = generator("verify", "weights", seed), 0
    for step in draws.choice(sorted(usable), size=min(8, len(usable)), replace=False).tolist():
        path = usable[step].path / "model.safetensors"
        header, offset = _header(path)
        raw = np.memmap(path, dtype=np.uint8, mode="r")
        names = [name for name in header if name != "__metadata__"]
        for address in draws.choice(names, size=min(8, len(names)), replace=False).tolist():
            begin, end = header[address]["data_offsets"]
            mine = np.frombuffer(raw[offset + begin : offset + end].tobytes(), dtype=np.uint8)
            read = np.ascontiguousarray(stored(folder.path, address, step))
            compared += 1
            if not np.array_equal(read.reshape(-1).view(np.uint8), mine):
                words = "as a view reads it, it is not what the file holds"
                faults.append(Fault(file=f"checkpoints/{path.parent.name}", step=step, address=address, sentence=words))
    return compared


def _header(path: Path) -> tuple[dict, int]:
    """The header of a safetensors file (a length in 8 bytes, then JSON) and where the tensors' bytes begin."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(length)), 8 + length


def _cells(
    telemetry: Telemetry, config: RunConfig, usable: Mapping[int, Standing], cells: int, seed: int, faults: list[Fault]
) -> int:
    """Random measurements of snapshot steps, computed again from the snapshots."""
    first = min(usable, default=-1) if config.history else 0
    if config.watch == "off" or first not in usable:
        return 0
    begin = _Weights(config, usable[first])
    recorded = [cell for cell in _recorded(telemetry, usable) if begin.knows(cell[1], cell[2])]
    chosen = generator("verify", "cells", seed).permutation(len(recorded))[:cells]
    by_step: dict[int, list[tuple[str, str, float]]] = defaultdict(list)
    for number in chosen.tolist():
        step, measure, address, value = recorded[number]
        by_step[step].append((measure, address, value))
    for step, wanted in sorted(by_step.items()):
        now = _Weights(config, usable[step])
        for measure, address, value in wanted:
            again = now.again(measure, address, begin)
            if not _agree(measure, value, again):
                words = f"{measure} is {value!r} in the telemetry and {again!r} of the weights"
                faults.append(Fault(file=_FILE, step=step, address=address, sentence=words))
    return len(chosen) + _row_drifts(telemetry, usable, first, faults)


def _recorded(telemetry: Telemetry, usable: Mapping[int, Standing]) -> list[tuple[int, str, str, float]]:
    """(step, measure, address, value) of every number that can be computed again; NaN where it was undefined."""
    found = []
    for measure in (name for name in _AGAIN if name not in _otherwise(telemetry)):
        for grid in grids(telemetry, measure):
            for column, step in enumerate(grid.step.tolist()):
                if step in usable:
                    cells = zip(grid.addresses, grid.value[:, column].tolist(), strict=True)
                    found += [(step, measure, address, value) for address, value in cells if not math.isnan(value)]
    return found


def _otherwise(telemetry: Telemetry) -> list[str]:
    """Measures that were not recorded, or by another formula than today's: an older version took them."""
    formulas = {row.name: row.formula for row in telemetry.measures()}
    return [name for name in _AGAIN if formulas.get(name) != MEASURES[name].formula]


def grids(telemetry: Telemetry, measure: str) -> list[Grid]:
    """A measure of all matrices, of all heads and circuits, and of all key/value heads, as far as it was taken."""
    found = []
    for selector in ("**", "**.H*.*", "**.KV*.*"):
        with contextlib.suppress(AddressError):
            found.append(telemetry.grid(measure, selector))
    return found


def _row_drifts(telemetry: Telemetry, usable: Mapping[int, Standing], first: int, faults: list[Fault]) -> int:
    """The drift of every token's row at every snapshot that has it, from the snapshot `first`."""
    compared = 0
    start = load_tensors(usable[first].path / "model.safetensors")
    for address, axis in (("W_E", 0), ("W_U", 1)):
        for step, values in telemetry.vectors(address, "row_drift").items():
            if step not in usable or address not in start:
                continue
            now = load_tensors(usable[step].path / "model.safetensors")[address]
            again = measures.row_drift(now, start[address], axis=axis)
            compared += len(values)
            if values.shape != again.shape or not np.allclose(values, again, rtol=_TOLERANCE, atol=0):
                words = "the drift of its rows is not that of the weights"
                faults.append(Fault(file=_FILE, step=step, address=address, sentence=words))
    return compared


def _agree(measure: str, value: float, again: float | None) -> bool:
    if again is None:
        return False
    if measure == "turn":
        return abs(value - again) <= _DEGREES
    return math.isclose(value, again, rel_tol=_TOLERANCE, abs_tol=1e-300)


class _Weights:
    """The weights of one snapshot, whole, by head and as circuits."""

    def __init__(self, config: RunConfig, one: Standing) -> None:
        self._stored = load_tensors(one.path / "model.safetensors")
        self._catalogue: Catalogue | None = None
        if config.watched == "names":  # matrices of a model whose code is not ours: its heads are not known here
            return
        catalogue = Catalogue(build(config.model, config.seed, materialise=False).to_empty(device="cpu"))
        if set(catalogue.addresses) == set(self._stored):  # a matrix that is shared with another is stored once
            catalogue.load_state(self._stored)
            self._catalogue = catalogue

    def again(self, measure: str, address: str, begin: "_Weights") -> float | None:
        """A measure of what an address names, None where it is undefined."""
        if address.rpartition(".")[2] in ("QK", "OV"):
            return self._circuit(measure, address)
        return _AGAIN[measure](self._matrix(address), begin._matrix(address), self._n_in(address))

    def _n_in(self, address: str) -> int:
        """The input width of the matrix that an address names a part of; 0 where it names all of one."""
        if address in self._stored or self._catalogue is None:
            return 0
        shape = self._catalogue.part(address).entry.shape
        return shape[0] if len(shape) > 1 else 0

    def _matrix(self, address: str) -> Tensor:
        if address in self._stored:
            return self._stored[address]
        assert self._catalogue is not None
        return self._catalogue.part(address).view().detach().clone()

    def knows(self, measure: str, address: str) -> bool:
        """Whether it can be computed again from weights alone.

        Of a circuit its norm and spectrum can; heads of a run that joined two matrices cannot.
        """
        if address.rpartition(".")[2] in ("QK", "OV") and measure not in ("norm", *SPECTRAL):
            return False
        return self._catalogue is not None or address in self._stored

    def _circuit(self, measure: str, address: str) -> float | None:
        assert self._catalogue is not None
        circuit = self._catalogue.circuit(address)
        factors = FactoredMatrix(circuit.left.detach().double(), circuit.right.detach().double())
        values = factors.singular_values().numpy()
        if measure == "norm":
            return math.sqrt(float((values**2).sum()))
        number = float(measures.spectrum_summary(values)[[*SPECTRAL].index(measure)])
        return number if math.isfinite(number) else None
