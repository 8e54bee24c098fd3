"""From weights to rows: each method takes one kind of look at every matrix and hands its numbers to the store.

Numbers go in under ids registered once, in canonical order: catalogue entries, their heads, circuits. When to look, and
what a look costs, is the recorder's; what each number means is in `registry.py`.
"""

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from torch import Tensor

from qkv.instruments.measures import between, row_drift
from qkv.instruments.measures.measure import N_SINGULAR
from qkv.instruments.pieces import entry_row, head_rows
from qkv.instruments.probe import Probe
from qkv.instruments.readings import MatrixReading
from qkv.instruments.registry import ANGLES, CIRCUIT, LIGHT, MEASURES, SPECTRAL
from qkv.instruments.spectra import (
    Blocks,
    Circuit,
    Heads,
    between_spaces,
    circuit_norm,
    circuit_reading,
    circuits,
    head_blocks,
    own_spectra,
    participation_ranks,
    product_spectra,
    spectra,
)
from qkv.instruments.sums import Passes
from qkv.models.matrices import Catalogue
from qkv.models.parts import Entry
from qkv.telemetry import RUN_ARM, AddressRow, Store

TABLES = ("W_E", "W_U")
"""Kinds of matrices with one row (or column) for each token."""

TOGETHER = 1 << 18
"""Numbers of attentions' matrices that are looked at together: more than a cache holds gains nothing."""


@dataclass(frozen=True)
class Moments:
    """What the optimizer keeps of squared gradients; empty where it keeps none."""

    second: Mapping[str, Tensor]
    """Address -> running mean of squared gradients, in the parameter's shape."""
    updates: Mapping[str, Tensor]
    """Address -> how many updates it has seen."""
    beta2: float

    def debias(self, addresses: Sequence[str]) -> np.ndarray:
        """1 - beta2^updates of each address; NaN where nothing is kept."""
        n = [float(self.updates[a]) if a in self.updates else np.nan for a in addresses]
        kept = 1 - self.beta2 ** np.array(n)
        return np.where(kept > 0, kept, np.nan)


class Measurements:
    """Measurements at the matrices of one catalogue, into arm `arm` of `store`.

    `start` holds the weights at step 0 by address, or is None where they are lost (what is measured from the start is
    then undefined). `probe` is what attention is looked at on, None for no such look.
    """

    def __init__(
        self,
        store: Store,
        catalogue: Catalogue,
        start: Mapping[str, Tensor] | None,
        *,
        moments: Moments | None = None,
        probe: Probe | None = None,
        arm: int = RUN_ARM,
    ) -> None:
        self.store, self.catalogue, self.arm = store, catalogue, arm
        self.entries, self.probe = list(catalogue), probe
        self.moments = moments or Moments({}, {}, 0.0)
        self.passes = Passes(self.entries, start, self.moments.second)
        self.n_numbers = 0
        self._matrices = [i for i, entry in enumerate(self.entries) if len(entry.shape) == 2]
        self._headed = [i for i in self.passes.divided if i in self._matrices]
        self._named = catalogue.named()
        at = {entry.address: i for i, entry in enumerate(self.entries)}
        self._stored = [at[entry.storage] for entry in self._named]
        self._circuits = circuits(self._named)
        self._stretch = {c.left: catalogue.stretch(self._named[c.left].address) for c in self._circuits if c.is_qk}
        self._tops: dict[str, Tensor] = {}
        self._starts: dict[int, tuple[tuple[Tensor, Tensor], np.ndarray]] = {}
        self._alike = self._attentions_alike()
        self.register()

    def register(self) -> None:
        """Give every measure and address its number, in canonical order."""
        divided = [self.entries[i] for i in self.passes.divided]
        second = [entry for entry in self._named if _is_cut_alike(entry, self.catalogue.entry(entry.storage))]
        heads = [row for entry in (*divided, *second) for row in head_rows(entry)]
        measures = self.store.register_measures([item.row() for item in MEASURES.values()])
        self._measures = dict(zip(MEASURES, measures, strict=True))
        rows = [entry_row(entry, self.catalogue) for entry in self.entries] + heads
        self._ids = self.store.register_addresses(rows)
        at = iter(self._ids[len(self.entries) :])
        self._head_ids = {entry.address: [next(at) for _ in range(entry.n_heads)] for entry in (*divided, *second)}
        self._second = {entry.address: [e.address for e in second if e.storage == entry.address] for entry in divided}
        places = {number: place for place, number in enumerate(self._ids)}
        self._copies = [places[n] for entry in second for n in self._head_ids[entry.storage]]
        self._circuit_ids = self.store.register_addresses(
            [_circuit_row(c.address, self._named[c.left]) for c in self._circuits]
        )
        patterns = self.probe.addresses(self.catalogue.model) if self.probe else []
        self._pattern_ids = self.store.register_addresses(
            [AddressRow(address=a, layer=layer, head=head, kind="pattern") for a, layer, head in patterns]
        )

    def matrices(self, step: int, names: Collection[str], reading: MatrixReading, unclip: float = 1.0) -> None:
        """Measures `names` of every entry and every head; `unclip` undoes the clipping of gradients."""
        debias = self.moments.debias([entry.address for entry in self.entries])
        head_debias = np.repeat(debias, [entry.n_heads for entry in self.entries])
        whole = replace(reading, unclip=unclip, debias=debias)
        parts = replace(self.passes.by_head(), unclip=unclip, debias=head_debias)
        values = np.stack([np.concatenate([LIGHT[name](whole), LIGHT[name](parts)]) for name in names])
        self._add(step, names, self._ids, np.concatenate([values, values[:, self._copies]], axis=1))

    def circuits(self, step: int, *, updated: bool) -> None:
        """Ranks of every head; norm, way and shares of every circuit, and around an update (`updated`) its size."""
        ids: list[int] = []
        ranks = [np.zeros(0)]
        for i in self._headed:
            found = participation_ranks(head_blocks(self.entries[i], self.passes.weights(i)))
            for name in self._head_names(i):
                ids += self._head_ids[name]
                ranks.append(found)
        self._add(step, ("participation_rank",), ids, np.concatenate(ranks)[None])
        for chosen in self._alike:
            before = self._factors(self.passes.before, chosen) if updated else None
            now = self._factors(self.passes.weights, chosen)
            reading = circuit_reading(now, before, *self._starting(chosen))
            alike = [self._circuits[i].is_qk and not self._circuits[i].is_crossed for i in chosen]
            reading.symmetric[~np.array(alike)] = np.nan
            ids = [self._circuit_ids[i] for i in chosen]
            self._add(step, CIRCUIT, ids, np.stack([of(reading) for of in CIRCUIT.values()]))

    def attention(self, step: int) -> None:
        """What every head attends to on the probe."""
        if self.probe is not None and self._pattern_ids:
            self._add(step, self.probe.measures, self._pattern_ids, self.probe.read(self.catalogue.model))

    def windows(self, step: int, wide: Probe) -> None:
        """The same in every window of a wide probe by itself: a vector for each measure and head."""
        patterns = wide.addresses(self.catalogue.model)
        found = wide.read(self.catalogue.model, by_window=True).astype(np.float32)
        for name, heads in zip(wide.measures, found, strict=True):
            for (address, _, _), values in zip(patterns, heads, strict=True):
                self.store.add_vector(step, name, address, values, arm=self.arm)
        self.n_numbers += found.size

    def matrix_spectra(self, step: int) -> None:
        """Ranks, rotation and largest singular values of every matrix."""
        for i in self._matrices:
            stored, address = self.passes.weights(i)[None], self.entries[i].address
            k = self._n_followed(stored.shape[-2:])
            values, top = spectra(stored, None, k)
            turned = self._turned(step, address, top, lambda i=i, k=k: spectra(self._at_start(i)[None], None, k)[1])
            self._add_spectra(step, [self._ids[i]], values, turned)
            self._add(step, ("participation_rank",), [self._ids[i]], participation_ranks(stored)[None])
            self._add_top(step, address, values[0])

    def head_spectra(self, step: int) -> None:
        """The same of every head's matrices and circuits, and the angles between the spaces that a head reads."""
        left = {self._stored[i]: i for i in reversed(range(len(self._named))) if self._is_own(i)}
        left = {stored: i for stored, i in left.items() if stored in self._headed}
        for chosen in self._alike:
            lefts, rights = ([getattr(self._circuits[c], side) for c in chosen] for side in ("left", "right"))
            named = list(dict.fromkeys(lefts + rights))  # in the order in which they are picked
            heads = self._heads(self.passes.weights, named)
            then = cache(lambda named=named: self._heads(self.passes.start, named))
            own = [i for i in named if self._is_own(i) and left.pop(self._stored[i], None) is not None]
            self._spectra_of_heads(step, own, heads, then)
            self._spectra_of_circuits(step, chosen, heads, then)
            self._angles(step, chosen, heads)
        for i in left.values():
            then = cache(lambda i=i: self._heads(self.passes.start, [i]))
            self._spectra_of_heads(step, [i], self._heads(self.passes.weights, [i]), then)

    def rows(self, step: int) -> None:
        """How far each token's row has moved, for each table of tokens."""
        for i, entry in enumerate(self.entries):
            start = self.passes.start(i)
            if entry.kind in TABLES and start is not None:
                drifts = row_drift(entry.parameter, start, axis=entry.axis)
                self._add_list(step, "row_drift", entry.address, drifts)

    # inside

    def _head_names(self, i: int) -> list[str]:
        """Under which names the heads of an entry are measured."""
        address = self.entries[i].address
        return [address, *self._second[address]]

    def _factors(self, of: Callable[[int], Tensor | None], chosen: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Left [n, d_model, d_head] and right [n, d_head, d_model] of some circuits, in the weights that `of` gives."""
        circuits, blocks = [self._circuits[i] for i in chosen], {}
        for i in {i for c in circuits for i in (c.left, c.right)}:
            stored = of(self._stored[i])
            assert stored is not None
            blocks[i] = head_blocks(self._named[i], stored)
        left = torch.stack([self._stretched(c, blocks[c.left][c.left_piece]) for c in circuits])
        right = [blocks[c.right][c.right_piece] for c in circuits]
        return left, torch.stack([b.mT if c.is_qk else b for b, c in zip(right, circuits, strict=True)])

    def _stretched(self, circuit: Circuit, columns: Tensor) -> Tensor:
        """The columns of a left factor [..., d_model, d_head], of a QK as long as the positions make q and k."""
        stretch = self._stretch[circuit.left] if circuit.is_qk else None
        return columns if stretch is None else columns * stretch.square().to(columns)

    def _starting(self, chosen: Sequence[int]) -> tuple[tuple[Tensor, Tensor] | None, np.ndarray | None]:
        """The factors at the start of circuits that are looked at together, and their norms; or none."""
        if self.passes.start(0) is None:
            return None, None
        if chosen[0] not in self._starts:
            left, right = self._factors(self.passes.start, chosen)
            self._starts[chosen[0]] = (left, right), circuit_norm((left, right))
        return self._starts[chosen[0]]

    def _attentions_alike(self) -> list[list[int]]:
        """The circuits of attentions whose heads have the same shapes, as many together as have room: what is asked
        of all heads at once costs hardly more than of one attention's, where they are small.
        """
        attentions: dict[str, list[int]] = {}
        for i, circuit in enumerate(self._circuits):
            attentions.setdefault(circuit.address.rpartition("H")[0], []).append(i)
        groups: dict[tuple[Hashable, ...], list[list[int]]] = {}
        for chosen in attentions.values():
            circuits = [self._circuits[i] for i in chosen]
            shapes = {i: self._named[i].shape for c in circuits for i in (c.left, c.right)}
            pieces = [(c.is_qk, c.is_crossed, c.left_piece, c.right_piece) for c in circuits]
            numbers = sum(map(math.prod, shapes.values()))
            alike = groups.setdefault((*shapes.values(), *pieces), [[]])
            if alike[-1] and (1 + len(alike[-1]) // len(chosen)) * numbers > TOGETHER:
                alike.append([])
            alike[-1] += chosen
        return [sorted(each, key=lambda i: not self._circuits[i].is_qk) for alike in groups.values() for each in alike]

    def _is_own(self, i: int) -> bool:
        """Whether a named matrix is the one that is stored, and no second name of it."""
        return self._named[i].address == self.entries[self._stored[i]].address

    def _heads(self, of: Callable[[int], Tensor | None], named: Sequence[int]) -> Heads:
        """The heads of some named matrices in the weights that `of` gives: as columns, d_head of them, d_model long."""
        columns = {}
        for i in named:
            stored = of(self._stored[i])
            assert stored is not None
            blocks = head_blocks(self._named[i], stored)
            columns[i] = blocks.mT if self._named[i].kind == "W_O" else blocks
        return Heads(columns, self._n_followed)

    def _spectra_of_heads(self, step: int, chosen: Sequence[int], heads: Heads, then: Callable[[], Heads]) -> None:
        """Of every head of some named matrices; `heads` has them, and `then` gives those at the start.

        The start goes the very way that its look at step 0 went: another order of sums is another last bit, and a
        resumed run writes the rows of an undisturbed one.
        """
        alike: dict[tuple[tuple[int, ...], bool], list[int]] = {}
        for i in chosen:
            alike.setdefault((heads.shape(i), self._named[i].kind == "W_O"), []).append(i)
        for (shape, is_wide), group in alike.items():
            places = [(i, head) for i in group for head in range(self._named[i].n_heads)]
            k, name = self._n_followed(shape), f"{self._named[group[0]].address} by head"

            def found(
                of: Heads, k: int = k, places: Sequence[tuple[int, int]] = places, is_wide: bool = is_wide
            ) -> tuple[np.ndarray, Tensor]:
                blocks = of.pick(places)
                if blocks.columns.shape[-2] > blocks.columns.shape[-1]:
                    return own_spectra(blocks, k, is_wide=is_wide)
                return spectra(blocks.columns.mT if is_wide else blocks.columns, None, k)

            values, top = found(heads)
            turned = self._turned(step, name, top, lambda found=found: found(then())[1])
            names = [self._head_names(self._stored[i]) for i in group]
            ids = [n for each in names for n in self._head_ids[each[0]]]
            self._add_spectra(step, ids, values, turned)
            ends = np.cumsum([0, *(self._named[i].n_heads for i in group)])
            for second, first, end in zip(names, ends, ends[1:], strict=False):
                for address in second[1:]:
                    self._add_spectra(step, self._head_ids[address], values[first:end], turned[first:end])

    def _spectra_of_circuits(self, step: int, chosen: Sequence[int], heads: Heads, then: Callable[[], Heads]) -> None:
        """Of circuits whose factors are among `heads`; `then` gives those at the start."""
        alike: dict[tuple[tuple[int, ...], tuple[int, ...], bool], list[int]] = {}
        for i in chosen:
            c = self._circuits[i]
            is_stretched = c.is_qk and self._stretch[c.left] is not None
            alike.setdefault((heads.shape(c.left), heads.shape(c.right), is_stretched), []).append(i)
        for (shape, _, is_stretched), group in alike.items():
            circuits, k = [self._circuits[i] for i in group], self._n_followed(shape)

            def product(
                of: Heads, k: int = k, circuits: Sequence[Circuit] = circuits, is_stretched: bool = is_stretched
            ) -> tuple[np.ndarray, Tensor]:
                left = of.pick([(c.left, c.left_piece) for c in circuits])
                if is_stretched:
                    longer = [self._stretched(c, x) for c, x in zip(circuits, left.columns, strict=True)]
                    left = Blocks(torch.stack(longer))
                return product_spectra(left, of.pick([(c.right, c.right_piece) for c in circuits]), k)

            values, top = product(heads)
            turned = self._turned(step, circuits[0].address, top, lambda product=product: product(then())[1])
            self._add_spectra(step, [self._circuit_ids[i] for i in group], values, turned)
            for circuit, row in zip(circuits, values, strict=True):
                self._add_top(step, circuit.address, row)

    def _n_followed(self, shape: Sequence[int]) -> int:
        """How many directions of a matrix are followed from the start; 0 where there is no start or no choice."""
        return N_SINGULAR if min(shape) > N_SINGULAR and self.passes.start(0) is not None else 0

    def _at_start(self, i: int) -> Tensor:
        kept = self.passes.start(i)
        assert kept is not None
        return kept

    def _turned(self, step: int, name: str, now: Tensor, start: Callable[[], Tensor]) -> np.ndarray:
        """How far the directions `now` [n, n_in, k] of what is called `name` are from those at the start, degrees [n];
        NaN where none are followed, and for zeros. `start` gives the latter where they are not yet known.
        """
        if not now.shape[-1]:
            return np.full(len(now), np.nan)
        if name not in self._tops:
            self._tops[name] = now if step == 0 else start()
        then = self._tops[name]
        is_zero = (now == 0).flatten(1).all(1) | (then == 0).flatten(1).all(1)
        return np.where(is_zero.cpu().numpy(), np.nan, between(then, now))

    def _angles(self, step: int, chosen: Sequence[int], heads: Heads) -> None:
        """Angles between the spaces that W_Q, W_K and W_V of each head of some attentions read."""
        circuits = [self._circuits[i] for i in chosen]
        of_qk, of_ov = ([c for c in circuits if c.is_qk is is_qk] for is_qk in (True, False))
        length, width = heads.shape(of_qk[0].left)
        if width >= length:
            return
        q = heads.pick([(c.left, c.left_piece) for c in of_qk])
        k = heads.pick([(c.right, c.right_piece) for c in of_qk])
        v = heads.pick([(c.left, c.left_piece) for c in of_ov])
        group = self._named[of_qk[0].right].group
        from_q, from_v = between_spaces(q, k), between_spaces(v, k)[::group]
        to_q = _root_mean(between_spaces(v, q).reshape(-1, group).T)
        if of_qk[0].is_crossed:
            from_q[:] = to_q[:] = np.nan
        ids_q, ids_v = self._ids_of_lefts(of_qk), self._ids_of_lefts(of_ov[::group])
        self._add_known(step, ANGLES[:1], np.append(ids_q, ids_v), np.append(from_q, from_v))
        self._add_known(step, ANGLES[1:], ids_v, to_q)

    def _ids_of_lefts(self, circuits: Sequence[Circuit]) -> np.ndarray:
        """Under which ids the heads that are left factors are measured, -1 for one of a name that has no heads."""
        known = [self._head_ids.get(self._named[c.left].address) for c in circuits]
        return np.array([-1 if ids is None else ids[c.left_piece] for ids, c in zip(known, circuits, strict=True)])

    def _add_known(self, step: int, names: Collection[str], ids: np.ndarray, values: np.ndarray) -> None:
        self._add(step, names, ids[ids >= 0].tolist(), values[None, ids >= 0])

    def _add(self, step: int, names: Collection[str], ids: Sequence[int], values: np.ndarray) -> None:
        if len(ids):
            self.store.add_block(step, [self._measures[name] for name in names], ids, values, arm=self.arm)
            self.n_numbers += values.size

    def _add_spectra(self, step: int, ids: Sequence[int], values: np.ndarray, turned: np.ndarray) -> None:
        columns = [of(values) for of in SPECTRAL.values()]
        self._add(step, (*SPECTRAL, "rotation"), ids, np.stack([*columns, turned]))

    def _add_top(self, step: int, address: str, spectrum: np.ndarray) -> None:
        self._add_list(step, "singular_values", address, spectrum[:N_SINGULAR].astype(np.float32))

    def _add_list(self, step: int, measure: str, address: str, values: np.ndarray) -> None:
        self.store.add_vector(step, measure, address, values, arm=self.arm)
        self.n_numbers += values.size


def _root_mean(degrees: np.ndarray) -> np.ndarray:
    """The angle whose squared cosine is the mean of theirs, over the first axis."""
    return np.degrees(np.arccos(np.sqrt((np.cos(np.radians(degrees)) ** 2).mean(0))))


def _is_cut_alike(entry: Entry, storage: Entry) -> bool:
    """Whether an entry is a second name whose heads are the heads of its storage."""
    cut = (entry.n_heads, entry.axis) == (storage.n_heads, storage.axis)
    return entry.tied_to is not None and entry.n_heads > 0 and cut


def _circuit_row(address: str, left: Entry) -> AddressRow:
    stem, kind = address.rsplit(".", 1)
    shape, head = (left.shape[0], left.shape[0]), int(stem.rsplit("H", 1)[1])
    return AddressRow(address=address, site="attn", layer=left.layer, head=head, kind=kind, shape=shape)
