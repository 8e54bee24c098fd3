"""Changes checked against a model before the first step, and made to hold in training.

`plan_changes` finds every mistake: selectors that match nothing, shapes that do not fit, changes without effect. The
plan is then a constraint of the training loop: `at_start`, `before_step`, `after_step`.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from qkv.changes.grammar import Change, parse_changes
from qkv.changes.holding import Freezer, covered
from qkv.changes.low_rank import LowRank
from qkv.changes.ops import OPS, Target, lora_numbers
from qkv.changes.stored import Loader, Stored
from qkv.errors import AddressError, ChangeError, unknown
from qkv.models.activations import Stops, joined, parse_activation, select_activations, spelled
from qkv.models.addresses import ACTIVATIONS, parse_selector
from qkv.models.matrices import Catalogue, Entry, Part
from qkv.models.zoo import BlockStack, stacks_of
from qkv.words import listed


@dataclass(frozen=True, slots=True)
class _Write:
    """Parts of one matrix that get new values before a later step."""

    change: Change
    entry: Entry
    parts: list[Part]
    read: list[Stored]
    """What was read of each in advance; none where values are computed from what the matrix then is."""


def plan_changes(
    changes: Sequence[str | Change],
    catalogue: Catalogue,
    seed: int,
    loader: Loader | None = None,
    *,
    n_steps: int | None = None,
    resumed_at: int = 0,
    looking: bool = False,
) -> "Plan":
    """Check changes, in their order, against the model as it now is, and work out what they write.

    The model is not touched yet. `n_steps` is the length of the run where it is known. A run that goes on from step
    `resumed_at` has its weights from a checkpoint, so what acted before that step is not worked out again. `looking` is
    for a model that will not be trained: freezing and steps then have no effect.

    Raises ChangeError or AddressError for the first change that cannot be made or has no effect.
    """
    plan = Plan(catalogue, seed, loader, resumed_at, looking)
    for item in changes:
        for change in parse_changes(str(item)):
            op = OPS[change.op]
            if looking and (change.window or op.freezes == "always" or op.on_activations or change.op == "lora"):
                raise ChangeError(f"{change} has no effect: nothing is trained here; expected a change of values")
            if n_steps is not None and change.start >= n_steps:
                raise ChangeError(f"{change} has no effect: it begins at step {change.start} of a run of {n_steps}")
            plan._add(change)
    if not looking:
        plan._check_something_trains()
    return plan


class Plan:
    """Changes that fit one model, and the constraint that makes them hold. `plan_changes` makes it.

    Matrices are known by the first name of their storage; sharing moves a name to another storage.
    """

    def __init__(
        self, catalogue: Catalogue, seed: int, loader: Loader | None, resumed_at: int, looking: bool = False
    ) -> None:
        self.catalogue, self._seed, self._loader = catalogue, seed, loader
        self._resumed_at, self._looking = resumed_at, looking
        self._entries: dict[str, Entry] = {entry.address: entry for entry in catalogue}
        self._storage = {name: address for address in self._entries for name in catalogue.names(address)}
        self._freezer = Freezer(self._entries)
        self._made: list[tuple[Change, list[Part]]] = []
        self._staged: dict[str, Tensor] = {}
        self._ties: dict[str, nn.Parameter] = {}
        self._writes: list[_Write] = []
        self._stops: list[tuple[Change, BlockStack, dict[str, frozenset[int] | None]]] = []
        self.lora: dict[str, Change] = {}
        """Address -> the change by which a product of low rank is trained in the matrix's stead."""

    @property
    def acts(self) -> bool:
        """Whether there is any change."""
        return bool(self._made)

    def at_start(self) -> Catalogue:
        """Write what holds from the first step, and join what is shared.

        Returns the catalogue to use from now on: a shared matrix makes one parameter less.
        """
        with torch.no_grad():
            for address, values in self._staged.items():
                self._entries[address].parameter.copy_(values)
        self._staged.clear()
        for name, parameter in self._ties.items():
            self.catalogue.tie(name, parameter)
        if self._ties:
            self.catalogue = Catalogue(self.catalogue.model, self.catalogue.vocabulary)
        return self.catalogue

    def before_step(self, step: int) -> None:
        """Write what acts before this step, and take gradients away from what is frozen during it."""
        for write in self._writes:
            if write.change.start == step:
                stored = write.entry.parameter.detach()
                new = self._values(write.change, write.entry, write.parts, stored, write.read)
                for part, values in zip(write.parts, new, strict=True):
                    part.of(stored).copy_(values)
        self.hold(step)

    def hold(self, step: int) -> None:
        """Take gradients away from what is stopped or frozen during this step, and write nothing."""
        self._stop_gradients(step)
        self._freezer.enter(step)

    def after_step(self, step: int) -> None:
        """Put frozen heads and rows back, bit for bit."""
        self._freezer.restore()

    def acts_at(self, step: int) -> bool:
        """Whether a change begins or ends with this step."""
        return any(step in (change.start, change.stop) for change, _ in self._made)

    def stops_at(self) -> list[int]:
        """Where gradients are stopped inside the model: every step at which that, or what is frozen, changes; or []."""
        spans = {step for change, *_ in self._stops for step in (change.start, change.stop)}
        return sorted({*self._freezer.boundaries, *spans} - {None}) if spans else []

    def at_end(self) -> None:
        """Let everything train again that did before."""
        self._stop_gradients(None)
        self._freezer.release()

    def frozen(self, step: int) -> set[str]:
        """The catalogue's addresses of matrices that are wholly frozen at a step."""
        held = {id(self._entries[address].parameter) for address in self._freezer.whole(step)}
        return {entry.address for entry in self.catalogue if id(entry.parameter) in held}

    def low_rank(self) -> dict[str, LowRank]:
        """Factors for each matrix of `lora`, made of its present values."""
        return {
            address: LowRank(address, self._entries[address].parameter, *lora_numbers(str(change.args[0])), self._seed)
            for address, change in self.lora.items()
        }

    def held_part(self) -> str:
        """The address of a matrix of which a head or row is frozen while the rest trains, at some step; or ""."""
        return self._freezer.held_part()

    def describe(self) -> list[str]:
        """A sentence for each change, and one for what trains around them at the first step."""
        frozen, groups = self.frozen(0), []
        for group, addresses in self.catalogue.groups.items():
            trained = sum(address not in frozen for address in addresses)
            groups += [f"{group} {trained} of {len(addresses)}"] if addresses else []
        lines = self.sentences()
        return [*lines, f"Matrices that train at step 0: {', '.join(groups)}."] if lines else []

    def sentences(self) -> list[str]:
        """A sentence for each change: what is done to which matrices, and with whom they are one."""
        return [self._sentence(change, parts) for change, parts in self._made]

    def _sentence(self, change: Change, parts: list[Part]) -> str:
        op, stop = OPS[change.op], "the end" if change.stop is None else f"step {change.stop - 1}"
        argument = str(change.args[0]) if change.args else ""
        if change.op == "random":
            argument = f"from N(0, {argument})" if argument else "from its start"
        frozen = change.holds and op.writes and not self._looking
        what = op.sentence.format(argument) + (" and frozen" if frozen else "")
        when = f" before step {change.start}" if change.start else ""
        if (change.holds or op.on_activations) and change.window:
            when = f" from step {change.start} to {stop}"
        named = self.catalogue.select(change.selector) if change.op == "only" else parts
        said = [self._name(part) for part in named] or [
            address for made, stack, found in self._stops if made is change for address in spelled(found, stack.sizes)
        ]
        what = what if len(said) == 1 else what.replace(" its ", " their ")
        names = said[:4] + [f"{len(said) - 4} more"] * (len(said) > 4)
        return f"{listed(names)}: {what}{when}."

    def _name(self, part: Part) -> str:
        """An address, and what else is touched with it."""
        names = self.catalogue.names(part.entry.address)
        others = [*part.shared_with, *(name for name in names if name != part.entry.address)]
        return part.address + (f" (the same matrix as {', '.join(others)})" if others else "")

    def _add(self, change: Change) -> None:
        """Take one more change into the plan."""
        if OPS[change.op].on_activations:
            self._add_stop(change)
            return
        self._check_matrices(change)
        parts = self.catalogue.select(change.selector)
        if change.op == "only":
            self._check_cuts(change, parts)
            named = [Part(part.address, self._entries[self._root(part)], part.piece) for part in parts]
            parts = [part for part in self.catalogue.others(named) if self._root(part) == part.entry.address]
        self._check_cuts(change, parts)
        self._check_alone(change, parts)
        effect = change.start < self._resumed_at
        if change.op == "lora":
            effect = self._factor(change, parts)
        elif change.op == "share":
            effect = self._share(change, parts)
        elif OPS[change.op].writes and not effect:
            effect = self._write(change, parts)
            self._check_random(change, parts, effect)
        if change.holds and not self._looking:
            effect |= any([self._freezer.add(self._root(p), p.piece, change.start, change.stop) for p in parts])
        if not effect:
            why = {"share": "that is one matrix already", "freeze": "that is frozen already"}.get(change.op)
            raise ChangeError(f"{change} has no effect: {why or 'everything is so already'}")
        self._made.append((change, parts))

    def _check_matrices(self, change: Change) -> None:
        """Raises AddressError where what is selected is an activation, of which there is no such op."""
        for term in parse_selector(change.selector):
            if term.text.rpartition(".")[2] in ACTIVATIONS:
                there = "" if self._looking else f"; of activations there is {term.text}=stop_gradient"
                raise AddressError(f"{change}: {term.text} is an activation, and {change.op} is of matrices{there}")

    def _check_random(self, change: Change, parts: list[Part], differ: bool) -> None:
        """Raises ChangeError where a start is drawn again that is no draw, as that of a matrix of zeros."""
        if change.op == "random" and not differ:
            raise ChangeError(
                f"{change} has no effect: the start of {parts[0].address} is one number everywhere and no draw; give a"
                " standard deviation, as random(0.02), or type freeze to hold it"
            )

    def _add_stop(self, change: Change) -> None:
        """Find the activations that are meant, in each stack of the model."""
        stacks = stacks_of(self.catalogue.model)
        names = [name for stack in stacks for name in stack.activation_names()]
        if not names:
            raise ChangeError(f"{change}: this model names no activations")

        def selected(selector: str) -> list[dict[str, frozenset[int] | None]]:
            found = [select_activations(selector, stack.activation_names(), stack.sizes) for stack in stacks]
            if not any(found):
                raise self._no_activation(change, selector, names)
            return found

        for term in parse_selector(change.selector):  # each must find something by itself
            selected(term.text)
        made = selected(change.selector)
        stopped = all(self._stopped(change, stack, found) for stack, found in zip(stacks, made, strict=True))
        if stopped and change.start >= self._resumed_at:
            raise ChangeError(f"{change} has no effect: no gradient passes there already")
        self._stops += [(change, stack, found) for stack, found in zip(stacks, made, strict=True) if found]
        self._made.append((change, []))

    def _stopped(self, change: Change, stack: BlockStack, found: Stops) -> bool:
        """Whether changes before this one let no gradient through any of what is found, as long as it lasts."""

        def windows(name: str, heads: frozenset[int] | None) -> list[tuple[int, int | None]]:
            before = [(other, made[name]) for other, where, made in self._stops if where is stack and name in made]
            return [
                (other.start, other.stop)
                for other, all_of in before
                if all_of is None or (heads is not None and heads <= all_of)
            ]

        return all(covered(change.start, change.stop, windows(name, heads)) for name, heads in found.items())

    def _no_activation(self, change: Change, selector: str, names: Sequence[str]) -> Exception:
        """Why there is nothing to stop gradients at: a matrix, heads that are shared, or no such name."""
        with suppress(AddressError):
            self.catalogue.select(selector)
            return AddressError(
                f"{change}: {selector} is of matrices, and stop_gradient is of activations, such as {names[-2]};"
                f" to hold a matrix as it is: {selector}=freeze"
            )
        try:
            parse_activation(selector, names, stacks_of(self.catalogue.model)[0].sizes)
        except AddressError as error:
            return error
        return AddressError(unknown("activation", selector, names))

    def _stop_gradients(self, step: int | None) -> None:
        """Let no gradient through what is stopped at a step; None lets all through."""
        for stack in {id(stack): stack for _, stack, _ in self._stops}.values():
            stack.stops = joined(
                [
                    found
                    for change, where, found in self._stops
                    if where is stack and step is not None and change.acts_in(step)
                ]
            )

    def _root(self, part: Part) -> str:
        """The first name of a part's storage."""
        return self._storage[part.entry.address]

    def _share(self, change: Change, parts: list[Part]) -> bool:
        source = self.catalogue.entry(str(change.args[0]))
        storage = self._storage[source.address]
        others = [part for part in parts if self._root(part) != storage]
        for part in others:
            self._check_untouched(change, part)
            if part.piece is not None or part.entry.transposed or source.transposed:
                raise ChangeError(
                    f"{change}: {part.address} and {source.address} cannot be one; expected whole matrices"
                )
            if part.entry.shape != source.shape:
                given, expected = list(part.entry.shape), list(source.shape)
                tables = {part.entry.kind, source.kind} == {"W_E", "W_U"} and given == expected[::-1]
                how = ", or --set tied=true, which makes W_U the transpose of W_E" if tables else ""
                raise ChangeError(
                    f"{change}: {part.address} is {given}, {source.address} is {expected}; expected equal{how}"
                )
            self._storage[part.entry.address] = storage
            self._ties[part.entry.address] = self._entries[storage].parameter
        return bool(others)

    def _check_alone(self, change: Change, parts: list[Part]) -> None:
        """A matrix of low rank has no other change."""
        touched = {self._root(part) for part in parts} | ({str(change.args[0])} if change.op == "share" else set())
        for made, others in self._made:
            both = sorted(touched & {self._root(part) for part in others}) if "lora" in (made.op, change.op) else []
            if both:
                raise ChangeError(
                    f"{change}: {both[0]} has another change, {made}; lora must be the only change of its matrix"
                )

    def _factor(self, change: Change, parts: list[Part]) -> bool:
        """Raises ChangeError for what is no whole matrix of its own, or is narrower than the rank."""
        rank, _ = lora_numbers(str(change.args[0]))
        for part in parts:
            entry, shape = part.entry, part.entry.parameter.shape
            names = [name for name, storage in self._storage.items() if storage == self._root(part)]
            why = f"{part.address} is a part of {entry.address}" if part.piece is not None else ""
            why = why or (f"{' and '.join(names)} are one matrix" if len(names) > 1 else "")
            why = why or (f"{part.address} is a vector of {shape[0]} numbers" if len(shape) != 2 else "")
            if why:
                raise ChangeError(f"{change}: {why}; expected whole matrices of their own, such as L*.W_[QV]")
            if rank > min(shape):
                raise ChangeError(f"{change}: {part.address} is {shape[0]} x {shape[1]}; expected r up to {min(shape)}")
            self.lora[entry.address] = change
        return True

    def _check_untouched(self, change: Change, part: Part) -> None:
        """What came before to a matrix that gives up its storage would be lost."""
        own = part.entry.address
        written = own in self._staged or any(write.entry.address == own for write in self._writes)
        tied = any(self._storage[name] == own for name in self._ties)
        if self._root(part) == own and (written or tied or self._freezer.holds(own)):
            raise ChangeError(f"{change}: an earlier change of {own} would be lost; put the share before it")

    def _check_cuts(self, change: Change, parts: list[Part]) -> None:
        """A head is a head of the storage that it lies in."""
        for part in parts:
            root = self._entries[self._root(part)]
            if part.piece is not None and (root.n_heads, root.axis) != (part.entry.n_heads, part.entry.axis):
                raise ChangeError(
                    f"{change}: {part.address} lies in {root.address} now, whose heads are cut otherwise; expected a"
                    " whole matrix"
                )

    def _write(self, change: Change, parts: list[Part]) -> bool:
        """Work out new values, now or to see that it can be done later; whether any differ from the present ones."""
        by_storage: dict[str, dict[int | None, tuple[Part, Part]]] = {}  # each: in its storage, and as selected
        for part in parts:
            entry = self._entries[self._root(part)]
            root = Part(entry.address if part.piece is None else part.address, entry, part.piece)
            by_storage.setdefault(entry.address, {}).setdefault(part.piece, (root, part))
        differ = False
        for address, pieces in by_storage.items():
            entry, roots = self._entries[address], [root for root, _ in pieces.values()]
            present = self._staged.get(address, entry.parameter.detach())
            read = self._read(change, entry, [selected for _, selected in pieces.values()])
            values = self._values(change, entry, roots, present, read)
            if change.start:
                self._writes.append(_Write(change, entry, roots, read))
                differ = True
                continue
            new = present.clone()
            for part, piece in zip(roots, values, strict=True):
                part.of(new).copy_(piece)
            differ |= not torch.equal(new, present)
            self._staged[address] = new
        return differ

    def _read(self, change: Change, entry: Entry, parts: list[Part]) -> list[Stored]:
        """What a change reads of each part, from files that may be gone when it acts; none where it reads nothing."""
        read, target = OPS[change.op].read, self._target(change, entry, entry.parameter.detach())
        return [] if read is None else [read(target, part) for part in parts]

    def _target(self, change: Change, entry: Entry, present: Tensor) -> Target:
        return Target(entry, present, change.args, change.start, self._seed, self.catalogue, self._loader)

    def _values(
        self, change: Change, entry: Entry, parts: list[Part], present: Tensor, read: list[Stored]
    ) -> list[Tensor]:
        """New values of parts of one matrix, as stored."""
        op, target = OPS[change.op], self._target(change, entry, present)
        if read:
            return [stored.over(part.of(present)) for stored, part in zip(read, parts, strict=True)]
        if op.whole is not None:
            whole = op.whole(target).to(present)
            return [part.of(whole) for part in parts]
        assert op.piece is not None
        return [op.piece(target, part).to(present) for part in parts]

    def _check_something_trains(self) -> None:
        trains = self._freezer.trainable & set(self._storage.values())
        for step in self._freezer.boundaries:
            if self._made and trains <= self._freezer.whole(step):
                made = ", ".join(str(change) for change, _ in self._made)
                raise ChangeError(f"{made} leaves nothing to train from step {step}")
