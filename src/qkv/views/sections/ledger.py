"""The ledger's payload: which matrix, head and kind of matrix earned the loss, and what the account leaves over."""

from collections.abc import Mapping

from qkv.inspection.answers.ledger import balance
from qkv.telemetry import Telemetry
from qkv.views.payloads import LedgerRow, LedgerSection
from qkv.views.sections.weights import role_of, short_kind

__all__ = ["ledger_section"]


def ledger_section(telemetry: Telemetry) -> LedgerSection | None:
    """The ledger of a whole run; None where none was kept, or nothing was earned."""
    found = balance(telemetry)
    if found is None or not found.earned:
        return None
    kinds: dict[str, float] = {}
    for address, nats in found.earned.items():
        kind = address.rpartition(".")[2]
        kinds[kind] = kinds.get(kind, 0.0) + nats
    return LedgerSection(
        matrices=_rows(found.earned),
        heads=_rows(found.heads),
        kinds=_rows(kinds),
        first_step=found.first_step,
        last_step=found.last_step,
        n_entries=found.n_entries,
        change=found.change,
        error=found.error,
    )


def _rows(earned: Mapping[str, float]) -> tuple[LedgerRow, ...]:
    """What lowered the loss most first."""
    return tuple(
        LedgerRow(address=address, role=role_of(short_kind(address).rpartition(".")[2]), nats=earned[address])  # type: ignore[arg-type]
        for address in sorted(earned, key=lambda address: (earned[address], address))
    )
