"""From weights to rows: each method takes one kind of look at every matrix and hands its numbers to the store.

Numbers go in under ids registered once, in canonical order: catalogue entries, their heads, circuits. When to look, and
what a look costs, is the recorder's; what each number means is in `registry.py`.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from qkv.instruments.measures import angle, ratio, reference_norm, row_drift, spectrum_summary
from qkv.instruments.passes import Passes, Reading
from qkv.instruments.registry import MEASURES, N_SINGULAR, SPECTRAL
from qkv.instruments.spectra import circuits, head_blocks, matrix_spectra, product_spectra
from qkv.models.matrices import Catalogue
from qkv.models.parts import Entry
from qkv.telemetry import RUN_ARM, AddressRow, Store

__all__ = ["TABLES", "Looks"]

TABLES = ("W_E", "W_U")
"""Kinds of matrices with one row (or column) for each token."""


class Looks:
    """Looks at the matrices of one catalogue, into arm `arm` of `store`.

    `start` holds the weights at step 0 by address, or is None where they are lost (drift and turn are then undefined);
    `by_head` registers heads and circuits.
    """

    def __init__(
        self,
        store: Store,
        catalogue: Catalogue,
        start: Mapping[str, Tensor] | None,
        *,
        by_head: bool = False,
        arm: int = RUN_ARM,
    ) -> None:
        self.store, self.catalogue, self.arm = store, catalogue, arm
        self.entries = list(catalogue)
        self.passes = Passes(self.entries, start)
        self.n_numbers = 0
        self._by_head = by_head
        self._matrices = [i for i, entry in enumerate(self.entries) if len(entry.shape) == 2]
        self._circuits = circuits(self.entries) if by_head else []
        self._n_out = np.array([entry.shape[-1] for entry in self.entries])
        self._head_n_out = np.concatenate([_head_n_out(self.entries[i]) for i in self.passes.divided] or [np.zeros(0)])
        self.register()

    def register(self) -> None:
        """Give every measure and address its number, in canonical order."""
        heads = [row for i in self.passes.divided for row in _head_rows(self.entries[i])] if self._by_head else []
        measures = self.store.register_measures([item.row() for item in MEASURES.values()])
        self._measures = dict(zip(MEASURES, measures, strict=True))
        self._ids = self.store.register_addresses([_entry_row(entry, self.catalogue) for entry in self.entries])
        self._head_ids = self.store.register_addresses(heads)
        self._head_matrix_ids = [n for n, row in zip(self._head_ids, heads, strict=True) if len(row.shape) == 2]
        self._circuit_ids = self.store.register_addresses(
            [_circuit_row(c.address, self.entries[c.left]) for c in self._circuits]
        )

    def whole(self, step: int, names: Sequence[str], reading: Reading, unclip: float = 1.0) -> None:
        """Measures `names` of every entry; `unclip` undoes the clipping of gradients."""
        self._write(step, names, self._ids, reading, self._n_out, unclip)

    def heads(self, step: int, names: Sequence[str], unclip: float = 1.0) -> None:
        """The same of every head, right after the entries were read."""
        if self._head_ids:
            self._write(step, names, self._head_ids, self.passes.by_head(), self._head_n_out, unclip)

    def matrix_spectra(self, step: int) -> None:
        """Spectral norm, stable and effective rank of every matrix, and its largest singular values."""
        values = matrix_spectra([self.passes.weights(i) for i in self._matrices])
        self._add_spectra(step, [self._ids[i] for i in self._matrices], values)
        for i, row in zip(self._matrices, values, strict=True):
            self._add_top(step, self.entries[i].address, row)

    def head_spectra(self, step: int) -> None:
        """Spectra of every head's matrices and circuits; of circuits their norm and largest singular values too."""
        headed = [i for i in self.passes.divided if i in self._matrices]
        blocks = {i: head_blocks(self.entries[i], self.passes.weights(i)) for i in headed}
        values = matrix_spectra([block for i in headed for block in blocks[i]])
        self._add_spectra(step, self._head_matrix_ids, values)
        if not self._circuits:
            return
        left = torch.stack([blocks[c.left][c.left_piece] for c in self._circuits])
        right = [blocks[c.right][c.right_piece] for c in self._circuits]
        products = product_spectra(
            left, torch.stack([b.mT if c.is_qk else b for b, c in zip(right, self._circuits, strict=True)])
        )
        self._add(step, ("norm",), self._circuit_ids, np.sqrt((products**2).sum(-1))[None])
        self._add_spectra(step, self._circuit_ids, list(products))
        for circuit, row in zip(self._circuits, products, strict=True):
            self._add_top(step, circuit.address, row)

    def rows(self, step: int) -> None:
        """How far each token's row has moved, for each table of tokens."""
        for i, entry in enumerate(self.entries):
            start = self.passes.start(i)
            if entry.kind in TABLES and start is not None:
                drifts = row_drift(entry.parameter, start, axis=entry.axis)
                self._add_list(step, "row_drift", entry.address, drifts)

    def _write(
        self, step: int, names: Sequence[str], ids: list[int], reading: Reading, n_out: np.ndarray, unclip: float
    ) -> None:
        columns = {
            "norm": reading.norm,
            "grad_norm": reading.grad_norm * unclip,
            "update_ratio": ratio(reading.update, reading.norm),
            "drift": reading.distance / reference_norm(reading.start_norm, n_out),
            "turn": angle(reading.distance, reading.along, reading.start_norm, reading.norm),
        }
        self._add(step, names, ids, np.stack([columns[name] for name in names]))

    def _add(self, step: int, names: Sequence[str], ids: Sequence[int], values: np.ndarray) -> None:
        self.store.add_block(step, [self._measures[name] for name in names], ids, values, arm=self.arm)
        self.n_numbers += values.size

    def _add_spectra(self, step: int, ids: Sequence[int], spectra: Sequence[np.ndarray]) -> None:
        if ids:
            self._add(step, SPECTRAL, ids, np.stack([spectrum_summary(row) for row in spectra], axis=1))

    def _add_top(self, step: int, address: str, spectrum: np.ndarray) -> None:
        self._add_list(step, "singular_values", address, spectrum[:N_SINGULAR].astype(np.float32))

    def _add_list(self, step: int, measure: str, address: str, values: np.ndarray) -> None:
        self.store.add_vector(step, measure, address, values, arm=self.arm)
        self.n_numbers += values.size


def _entry_row(entry: Entry, catalogue: Catalogue) -> AddressRow:
    others = [name for name in catalogue.names(entry.address) if name != entry.address]
    return AddressRow(
        address=entry.address,
        site=entry.site,
        layer=entry.layer,
        kind=entry.kind,
        shape=entry.shape,
        tied_to=", ".join(others) or None,
    )


def _head_rows(entry: Entry) -> list[AddressRow]:
    """One row for each head: by query head, or by key/value head where query heads share it."""
    stem = entry.address.removesuffix(entry.kind)
    name = "KV" if entry.group > 1 else "H"
    shape = list(entry.shape)
    shape[entry.axis] = entry.width
    return [
        AddressRow(
            address=f"{stem}{name}{head}.{entry.kind}",
            site=entry.site,
            layer=entry.layer,
            head=head,
            kind=entry.kind,
            shape=tuple(shape),
        )
        for head in range(entry.n_heads)
    ]


def _head_n_out(entry: Entry) -> np.ndarray:
    width = entry.width if entry.axis == len(entry.shape) - 1 else entry.shape[-1]
    return np.full(entry.n_heads, width)


def _circuit_row(address: str, left: Entry) -> AddressRow:
    stem, kind = address.rsplit(".", 1)
    d_model = left.shape[0]
    return AddressRow(
        address=address,
        site="attn",
        layer=left.layer,
        head=int(stem.rsplit("H", 1)[1]),
        kind=kind,
        shape=(d_model, d_model),
    )
