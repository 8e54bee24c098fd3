"""The catalogue: every parameter of a model by its address, with its values, its gradient and a way to write.

Each parameter is one entry, counted once; heads and rows are parts of entries, circuits are products of parts.
A parameter with two names (W_U tied to W_E, or a shared matrix) is one entry and an alias.
"""

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from qkv.errors import AddressError, RunFolderError, unknown
from qkv.models.addresses import ACTIVATIONS, CIRCUITS, GROUPS, Address, Term, parse_address, parse_selector
from qkv.models.factored import FactoredMatrix
from qkv.models.parts import Entry, Part, make_entry
from qkv.models.positions import Rotary, Rotary2D, rotate
from qkv.models.start import address_of
from qkv.shapes import Num

__all__ = ["Catalogue", "Entry", "Part"]


class Catalogue:
    """Every parameter of `model`, each once, in order from the embedding to the unembedding.

    `vocabulary` (token -> row) lets addresses and selectors name rows by token, as in `W_E[the]`.
    """

    def __init__(self, model: nn.Module, vocabulary: Mapping[str, int] | None = None) -> None:
        self.model, self.vocabulary = model, vocabulary
        self._entries: dict[str, Entry] = {}
        self._owners: dict[str, tuple[nn.Module, str]] = {}
        first: dict[int, str] = {}
        for path, parameter in model.named_parameters(remove_duplicate=False):
            address, (owner_path, _, name) = address_of(path), path.rpartition(".")
            assert address not in self._entries, f"two parameters are called {address}"
            owner, storage = model.get_submodule(owner_path), first.setdefault(id(parameter), address)
            self._owners[address] = (owner, name)
            self._entries[address] = make_entry(
                address, parameter, owner, tied_to=None if storage == address else storage
            )
        self._layout = getattr(model, "layout", getattr(getattr(model, "config", None), "layout", None))
        table = next((a for a in ("W_E", "enc.W_E") if a in self._entries), None)
        if (
            getattr(self._layout, "tied", False)
            and hasattr(getattr(model, "head", None), "W_U")
            and table
            and "W_U" not in self._entries
        ):
            self._entries["W_U"] = make_entry(
                "W_U", self._entries[table].parameter, model, tied_to=table, transposed=True
            )

    @property
    def addresses(self) -> list[str]:
        """Every parameter's address, exactly once."""
        return [address for address, entry in self._entries.items() if entry.tied_to is None]

    @property
    def aliases(self) -> dict[str, str]:
        """Second name -> the address whose storage it shares."""
        return {address: entry.tied_to for address, entry in self._entries.items() if entry.tied_to is not None}

    @property
    def is_tied(self) -> bool:
        """Whether W_U is the transpose of W_E."""
        return any(entry.transposed for entry in self._entries.values())

    @property
    def groups(self) -> dict[str, list[str]]:
        """Group (embed attn mlp norms head) -> addresses; each address is in exactly one."""
        return {group: [entry.address for entry in self if entry.site == site] for group, site in GROUPS.items()}

    def __iter__(self) -> Iterator[Entry]:
        return (entry for entry in self._entries.values() if entry.tied_to is None)

    def __len__(self) -> int:
        return len(self.addresses)

    def named(self) -> list[Entry]:
        """Every name of every parameter, second names too, in the catalogue's order."""
        return list(self._entries.values())

    def names(self, address: str) -> list[str]:
        """All names of one matrix's storage, the canonical one first."""
        storage = self.entry(address).storage
        return [storage, *(alias for alias, target in self.aliases.items() if target == storage)]

    def entry(self, address: str) -> Entry:
        """The entry of a whole matrix, by any of its names.

        Raises AddressError with the nearest addresses.
        """
        if address not in self._entries:
            raise self._unknown(str(parse_address(address)))
        return self._entries[address]

    def part(self, address: str) -> Part:
        """What one address names: a matrix, one head of it, or one row.

        Raises AddressError for an activation, a circuit, or what this model does not have.
        """
        parsed = parse_address(address)
        entry = self._entries.get(str(Address(parsed.scope, parsed.layer, parsed.cross, None, parsed.name)))
        if entry is None or parsed.kind != "matrix":
            raise self._unknown(address)
        if parsed.head is not None:
            whole = parsed.token is None
            found = next((part for part in entry.heads() if part.address == address and whole), None)
            if found is None:
                raise self._unknown(address, (part.address for part in entry.heads()))
            return found
        return Part(address, entry) if parsed.token is None else self._row(entry, parsed.token)

    def view(self, address: str) -> Tensor:
        """`part(address).view()`: the values in the field's shape, sharing memory."""
        return self.part(address).view()

    def grad(self, address: str) -> Tensor | None:
        """`part(address).grad()`: the gradient in the field's shape, or None."""
        return self.part(address).grad()

    def write(self, address: str, values: Num[Tensor, "..."]) -> None:
        """`part(address).write(values)`: replace the values."""
        self.part(address).write(values)

    def circuit(self, address: str, *, distance: int = 0) -> FactoredMatrix:
        """A head's circuit as factors: QK = W_Q W_K^T or OV = W_V W_O, [d_model, d_model] of rank at most d_head.

        With rotary positions the score of a query `distance` positions after its key is x W_Q R(distance) W_K^T x^T;
        R is folded into the left factor, and so is the square of the stretch of q and k where their scaling has one.
        `caveats` of the result says what else the product leaves out.

        Raises AddressError where `address` is no circuit, or where a distance changes nothing.
        """
        parsed = parse_address(address)
        if parsed.kind != "circuit":
            raise AddressError(f"{address} is not a circuit; expected a head's QK or OV, such as L0.H0.QK")
        stem = address.removesuffix(parsed.name)
        if parsed.name == "OV":
            left, right = self.view(f"{stem}W_V"), self.view(f"{stem}W_O")
        else:
            left, right = self.view(f"{stem}W_Q"), self.view(f"{stem}W_K").T
            stretch = self.stretch(self.part(f"{stem}W_Q").entry.address)
            if stretch is not None:
                left = left * (stretch if distance else stretch.square()).to(left)  # tables of turns hold it once
        if distance:
            rotary = self._rotary(self.part(f"{stem}W_Q").entry.address)
            if rotary is None or parsed.name == "OV":
                raise AddressError(f"{address} does not depend on distance; only a QK with rotary positions does")
            if isinstance(rotary, Rotary2D):
                raise AddressError(
                    f"{address} turns by rows and columns here; a distance along one line has no meaning"
                )
            cos, sin = (table[-1:] for table in rotary.tables(abs(distance) + 1, left.dtype, left.device)[:2])
            left = rotate(left, cos, sin if distance > 0 else -sin)
        return FactoredMatrix(left, right, address)

    def stretch(self, address: str) -> Tensor | None:
        """Of a whole W_Q: by what each coordinate of q and of k is made longer with the turns (`Rotary.stretch`)."""
        rotary = self._rotary(address)
        return None if rotary is None else rotary.stretch(self._entries[address].width)

    def _rotary(self, address: str) -> Rotary | None:
        """The turns of the attention that a matrix belongs to, by any name of its own."""
        return getattr(self._owners[address][0], "rotary", None)

    def select(self, selector: str) -> list[Part]:
        """The parts a selector picks, in the catalogue's order, each piece of storage once.

        These are whole entries where the selector names no head or token; an entry less some of its heads or rows is
        the others. A first term that subtracts takes away from everything.

        Raises AddressError where it does not parse, where a term matches nothing or takes nothing away.
        """
        terms = parse_selector(selector)
        chosen: dict[str, dict[int | None, Part]] = {}
        if terms[0].subtract:
            chosen = {entry.address: {None: Part(entry.address, entry)} for entry in self}
        for term in terms:
            change, parts = _take if term.subtract else _add, self._matching(term)
            effects = [change(chosen.setdefault(part.entry.storage, {}), part) for part in parts]
            if term.subtract and not any(effects):
                raise AddressError(f"-{term.text} takes nothing away from what stands before it in {selector!r}")
        if not any(chosen.values()):
            raise AddressError(f"{selector!r} takes every matrix away again")
        return self._in_order(chosen)

    def others(self, parts: Iterable[Part]) -> list[Part]:
        """Everything but `parts`, in the catalogue's order; empty where they are everything."""
        chosen: dict[str, dict[int | None, Part]] = {
            entry.address: {None: Part(entry.address, entry)} for entry in self
        }
        for part in parts:
            _take(chosen[part.entry.storage], part)
        return self._in_order(chosen)

    def _in_order(self, chosen: Mapping[str, Mapping[int | None, Part]]) -> list[Part]:
        return [
            pieces[piece]
            for pieces in (chosen.get(address, {}) for address in self.addresses)
            for piece in sorted(pieces, key=lambda piece: -1 if piece is None else piece)
        ]

    def state(self) -> dict[str, Tensor]:
        """Address -> values as stored, detached and contiguous, in the parameter's own memory."""
        return {entry.address: entry.parameter.detach().contiguous() for entry in self}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Write stored values into every parameter, or into none.

        Raises RunFolderError where an address is missing, is not this model's, or has another shape.
        """
        addresses = self.addresses
        missing, extra = [a for a in addresses if a not in state], [a for a in state if a not in addresses]
        if missing or extra:
            raise RunFolderError(
                "the stored weights are not this model's"
                + (f"; missing: {_some(missing)}" if missing else "")
                + (f"; not in the model: {_some(extra)}" if extra else "")
            )
        for entry in self:
            if state[entry.address].shape != entry.parameter.shape:
                given, expected = list(state[entry.address].shape), list(entry.parameter.shape)
                raise RunFolderError(f"the stored {entry.address} is {given}; this model's is {expected}")
        for entry in self:
            entry.parameter.copy_(state[entry.address])

    def tie(self, address: str, parameter: nn.Parameter) -> None:
        """Make `address` use another parameter of its shape; build a new Catalogue afterwards."""
        owner, name = self._owners[address]
        assert getattr(owner, name).shape == parameter.shape
        setattr(owner, name, parameter)

    def _candidates(self, term: Term) -> list[Part]:
        """The parts that match one term, its token left aside."""
        if term.by_head and term.token is None:
            parts: Iterable[Part] = (part for entry in self._entries.values() for part in entry.heads())
        else:
            parts = (Part(address, entry) for address, entry in self._entries.items())
        return [part for part in parts if term.matches(part.address, part.entry.site)]

    def _matching(self, term: Term) -> list[Part]:
        """The parts that one term picks, at least one."""
        parts = self._candidates(term)
        if not parts:
            heads = (part.address for entry in self._entries.values() for part in entry.heads())
            raise self._unknown(term.text, heads if term.by_head else ())
        return parts if term.token is None else [self._row(part.entry, term.token) for part in parts]

    def _row(self, entry: Entry, token: str | int) -> Part:
        """One row of a table, by token or by number."""
        address = str(Address("", None, False, None, entry.address, token))
        if entry.divides != "row":
            raise AddressError(f"{address}: {entry.address} has no rows of tokens or positions")
        if isinstance(token, str):
            if self.vocabulary is None or entry.kind in ("W_pos", "W_type", "W_rel"):
                raise AddressError(f"{address}: here rows of {entry.address} have numbers only, as {entry.address}[0]")
            if token not in self.vocabulary:
                told, cut = unknown("token", token[:80], self.vocabulary), self._cut(entry.address, token)
                raise AddressError(told + "." * bool(cut and not told.endswith("?")) + cut)
            token = self.vocabulary[token]
        if token >= entry.n_pieces:
            raise AddressError(f"{address}: {entry.address} has rows 0 to {entry.n_pieces - 1}")
        return Part(address, entry, token)

    def _cut(self, table: str, text: str) -> str:
        """Of a word that is no token: which tokens the tokenizer makes of it, each with a row of its own."""
        cut = getattr(self.vocabulary, "cut", None)
        pieces = cut(text) if cut and len(text) <= 80 else []
        if len(pieces) < 2:
            return ""
        rows = [str(Address("", None, False, None, table, piece)) for piece in pieces[:8]]
        more = f" and {len(pieces) - 8} more" if len(pieces) > 8 else ""
        return f" The tokenizer cuts it into {len(pieces)} tokens, each with a row of its own: {' '.join(rows)}{more}"

    def _unknown(self, text: str, heads: Iterable[str] = ()) -> AddressError:
        """Why no matrix answers to `text`, and the nearest addresses."""
        name = text.rpartition(".")[2]
        if name in ACTIVATIONS:
            return AddressError(
                f"{text} is an activation, computed from a text, and not a matrix; "
                f"to see it: qkv show RUN {text} --text TEXT"
            )
        if name in CIRCUITS:
            return AddressError(f"{text} is a circuit, a product of matrices; name its factors, such as L0.H0.W_Q")
        groups = [group for group, addresses in self.groups.items() if addresses]
        if text in GROUPS:
            return AddressError(f"this model has no matrices of the group {text}; its groups are {', '.join(groups)}")
        options, stem = [*self._entries, *groups, *heads], text.removesuffix(name)
        for pattern in (f"**.{text}", f"{stem}**.{name}"):
            term = parse_selector(pattern)[0]
            deeper = [] if text.startswith("*") else self._candidates(term)
            if deeper and term.token is not None:  # rows are meant; of what has none it is said
                tables = [part for part in deeper if part.entry.divides == "row"] or deeper
                deeper = [self._row(part.entry, term.token) for part in tables]
            if deeper:
                return AddressError(
                    f"unknown address {text!r}; did you mean {_some([p.address for p in deeper])}"
                    f" (or, where several are taken, '{pattern}')?"
                )
        return AddressError(unknown("address", text, options))


def _add(pieces: dict[int | None, Part], part: Part) -> None:
    """Add a part to the chosen pieces of its storage."""
    if None not in pieces and part.piece is None:
        pieces.clear()
    if None not in pieces:
        pieces.setdefault(part.piece, part)


def _take(pieces: dict[int | None, Part], part: Part) -> bool:
    """Take a part away from the chosen pieces of its storage; whether there was anything to take."""
    if part.piece is None:
        had = bool(pieces)
        pieces.clear()
        return had
    if None in pieces:
        pieces.update((piece.piece, piece) for piece in pieces.pop(None).entry.pieces())
    return pieces.pop(part.piece, None) is not None


def _some(addresses: list[str]) -> str:
    """The first few of a list, and how many more there are."""
    more = len(addresses) - 5
    return ", ".join(addresses[:5]) + (f" and {more} more" if more > 0 else "")
