"""The rows by which telemetry names a matrix and its heads: the same for every instrument that speaks of them."""

from dataclasses import replace

from qkv.models.matrices import Catalogue
from qkv.models.parts import Entry
from qkv.telemetry import AddressRow


def entry_row(entry: Entry, catalogue: Catalogue) -> AddressRow:
    """A whole matrix, with its other name where it is tied."""
    others = [name for name in catalogue.names(entry.address) if name != entry.address]
    return AddressRow(
        address=entry.address,
        site=entry.site,
        layer=entry.layer,
        kind=entry.kind,
        shape=entry.shape,
        tied_to=", ".join(others) or None,
    )


def head_rows(entry: Entry) -> list[AddressRow]:
    """One row for each head: by query head, or by key/value head where query heads share it; none without heads."""
    stem = entry.address.removesuffix(entry.kind)
    name = "KV" if entry.group > 1 else "H"
    shape = list(entry.shape)
    if entry.n_heads:
        shape[entry.axis] = entry.width
    one = AddressRow(address="", site=entry.site, layer=entry.layer, kind=entry.kind, shape=tuple(shape))
    return [replace(one, address=f"{stem}{name}{n}.{entry.kind}", head=n) for n in range(entry.n_heads)]
