"""The ledger's payload: which matrix, head and kind of matrix earned the loss, and what the account leaves over."""

import dataclasses
from collections.abc import Mapping

from qkv.inspection.answers.ledger import balance
from qkv.telemetry import Telemetry
from qkv.views.report.packed import payload
from qkv.views.sections.matrices import Role, role_of, short_kind


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerRow:
    """What one matrix, one head or one kind of matrix earned."""

    address: str
    role: Role
    nats: float
    """By which its movement changed the loss; below 0 lowered it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerSection:
    """Which matrix earned the loss, each list by what was earned, and how closely the account closes."""

    matrices: tuple[LedgerRow, ...]
    heads: tuple[LedgerRow, ...]
    kinds: tuple[LedgerRow, ...]
    first_step: int
    last_step: int
    n_entries: int
    change: float
    """Of the loss of the ledger's probe, nats."""
    error: float
    """All that was earned less that change, nats."""


def ledger_section(telemetry: Telemetry) -> LedgerSection | None:
    """The ledger of a whole run; None where none was kept, or nothing was earned."""
    found = balance(telemetry)
    if found is None or not found.earned:
        return None
    kinds: dict[str, float] = {}
    for address, nats in found.earned.items():
        kind = address.rpartition(".")[2]
        kinds[kind] = kinds.get(kind, 0.0) + nats
    lists = {"matrices": _rows(found.earned), "heads": _rows(found.heads), "kinds": _rows(kinds)}
    return payload(LedgerSection, found, **lists)


def _rows(earned: Mapping[str, float]) -> tuple[LedgerRow, ...]:
    """What lowered the loss most first."""
    return tuple(
        LedgerRow(address=address, role=role_of(short_kind(address).rpartition(".")[2]), nats=earned[address])
        for address in sorted(earned, key=lambda address: (earned[address], address))
    )
