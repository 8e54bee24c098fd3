"""`qkv show RUN [ADDR] --text TEXT --at A..B`: whether q, k, v and scores moved because x did or the matrices did."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qkv.commands.printing import screen
from qkv.commands.show.text import words_of
from qkv.errors import AddressError
from qkv.jsontypes import JsonObject
from qkv.models.addresses import parse_address
from qkv.words import decimals, figure

if TYPE_CHECKING:
    from qkv.api import Run
    from qkv.inspection.what_moved import ProductChange

OF = {"W_Q": "q", "W_K": "k", "W_V": "v", "q": "q", "k": "k", "v": "v", "scores": "scores", "QK": "scores"}
"""What may be asked for, by the last part of an address -> the product."""


@dataclass(frozen=True)
class MovedShown:
    """The changes of some products between two steps on one text."""

    tokens: list[str]
    span: tuple[int, int]
    products: "list[ProductChange]"
    unplaced: "list[ProductChange]"
    """q and k before QK-norm, where the model has it."""
    head: int | None

    def as_json(self) -> JsonObject:
        """Shares of each product whole, by head and by token."""
        return {
            "tokens": self.tokens,
            "steps": self.span,
            "products": [_json(product) for product in self.products],
            "before_qk_norm": [_json(product) for product in self.unplaced],
        }

    def print(self) -> None:
        """One table for all; of a single product its heads and tokens too."""
        a, b = self.span
        print(f"What changed from step {a:,} to {b:,} on this text, and why. Shares sum to 1.")
        print("encodings: because x changed.  matrix: because W changed.  both: dx dW, which needs both changes.\n")
        linear = [p for p in self.products if not p.address.endswith("scores")]
        scores = [p for p in self.products if p.address.endswith("scores")]
        if linear:
            _table("product", [(p.address, p) for p in linear])
        if self.unplaced:
            print("\nThe same before QK-norm and rotary positions:")
            _table("product", [(p.address, p) for p in self.unplaced])
        if scores:
            print()
            _table("scores", [(p.address, p) for p in scores])
        if len(self.products) == 1:
            self._details(self.products[0])

    def _details(self, product: "ProductChange") -> None:
        for title, shares, labels in (
            ("by head", product.shares_by_head(), self._head_names(product)),
            ("by token", product.shares_by_token(), [screen.token(token) for token in self.tokens]),
        ):
            names = list(shares)
            print()
            rows = [
                (label, *(decimals(float(shares[n][i]), signed=True) for n in names)) for i, label in enumerate(labels)
            ]
            screen.print_table([title, *names], rows)

    def _head_names(self, product: "ProductChange") -> list[str]:
        if self.head is not None:
            return [product.address]
        layer, _, name = product.address.rpartition(".")
        return [f"{layer}.H{head}.{name}" for head in range(len(product.before))]


def _json(product: "ProductChange") -> JsonObject:
    by_head = {name: values.tolist() for name, values in product.shares_by_head().items()}
    by_token = {name: values.tolist() for name, values in product.shares_by_token().items()}
    whole = {"address": product.address, "relative_change": product.relative, "shares": product.shares}
    return {**whole, "by_head": by_head, "by_token": by_token}


def _table(title: str, products: "list[tuple[str, ProductChange]]") -> None:
    names = list(products[0][1].terms)
    rows = [(name, *(decimals(p.shares[n], signed=True) for n in names), figure(p.relative)) for name, p in products]
    screen.print_table([title, *names, "|change| / |before|"], rows)


def look(run: "Run", text: str, address: str | None, a: int, b: int) -> MovedShown:
    """The changes of every product, or of the one that `address` names (`L1.W_Q`, `L1.H0.q`, `L1.scores`).

    Raises AddressError for what is no product of x, RunFolderError for a step without weights.
    """
    wanted, head = (None, None) if address is None else _wanted(address)
    found = run.what_moved(text, a, b)
    unplaced = run.what_moved(text, a, b, placed=False) if run.config.model.layout.qk_norm else []
    unplaced = [p for p in unplaced if not p.address.endswith(".v")]
    if wanted is not None:
        if wanted not in {p.address for p in found}:
            raise AddressError(f"{address}: this model has layers 0 to {run.config.model.sizes.n_layers - 1}")
        found = [_cut(p, head, run) for p in found if p.address == wanted]
        unplaced = [_cut(p, head, run) for p in unplaced if p.address == wanted]
    return MovedShown(words_of(run, text)[1], (a, b), found, unplaced, None if head is None else head[1])


def _wanted(address: str) -> tuple[str, tuple[str, int] | None]:
    """The whole product's address, and the head that is asked for."""
    parsed = parse_address(address)
    if parsed.name not in OF or parsed.layer is None or parsed.token is not None:
        raise AddressError(
            f"{address} is no product of x; expected a layer's or head's W_Q, W_K, W_V, q, k, v or scores, as L0.W_Q"
        )
    return f"L{parsed.layer}.{OF[parsed.name]}", parsed.head


def _cut(product: "ProductChange", head: tuple[str, int] | None, run: "Run") -> "ProductChange":
    """One head of a product. A query head that shares its keys and values is that of theirs."""
    if head is None:
        return product
    kind, number = head
    n, sizes = len(product.before), run.config.model.sizes
    by_kv = product.address[-1] in "kv"
    n_named = n if kind == "KV" or not by_kv else sizes.n_heads
    if number >= n_named or (kind == "KV" and not by_kv):
        raise AddressError(f"{product.address} has heads 0 to {n_named - 1}; given: {kind}{number}")
    index = number // (sizes.n_heads // n) if kind == "H" and by_kv else number
    layer, _, name = product.address.rpartition(".")
    terms = {term: values[index : index + 1] for term, values in product.terms.items()}
    part = slice(index, index + 1)
    return type(product)(f"{layer}.{kind}{number}.{name}", product.before[part], product.after[part], terms)
