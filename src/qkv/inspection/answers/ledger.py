"""Which matrix earned the loss: the ledger read as a sentence, with the error that it closes to."""

import math
from dataclasses import dataclass

from qkv.inspection.answers.answer import Answer, Evidence
from qkv.inspection.stored_run import recorded
from qkv.telemetry import LEDGER_ARM, Telemetry
from qkv.words import listed, number, percent, signed

EARNED = "earned"
"""The measure, as `instruments.ledger` records it."""

CLOSES = 0.05
"""A ledger that leaves more than this share of the change unaccounted for is no account."""

NAMED = 4
"""How many matrices the sentence names."""


@dataclass(frozen=True)
class Balance:
    """The ledger from one entry to another."""

    first_step: int
    last_step: int
    n_entries: int
    change: float
    """Of the probe batch's loss, nats per target."""
    earned: dict[str, float]
    """Matrix -> nats that its movement changed the loss by; below 0 lowered it."""
    heads: dict[str, float]
    """The same of every head, which its matrix holds too."""

    @property
    def error(self) -> float:
        """What all matrices earned, less the actual change: nats that the ledger cannot account for."""
        return sum(self.earned.values()) - self.change


def balance(telemetry: Telemetry, first: int = 0, last: int | None = None) -> Balance | None:
    """The ledger from step `first` to step `last` (None: the end); None where there is none.

    Where a step has no entry, the nearest entry inside is taken.
    """
    losses = [e for e in telemetry.evaluations(arm=LEDGER_ARM) if e.step >= first and (last is None or e.step <= last)]
    if len(losses) < 2:
        return None
    span = losses[0].step, losses[-1].step
    return Balance(
        first_step=losses[0].step,
        last_step=losses[-1].step,
        n_entries=len(losses) - 1,
        change=losses[-1].loss - losses[0].loss,
        earned=_sums(telemetry, "**", span),
        heads=_sums(telemetry, "**.H*.**", span) | _sums(telemetry, "**.KV*.**", span),
    )


def _sums(telemetry: Telemetry, selector: str, span: tuple[int, int]) -> dict[str, float]:
    """What each address earned after the first and up to the second step; empty where nothing matches."""
    grid = recorded(telemetry, EARNED, selector)
    if grid is None:
        return {}
    inside = (grid.step > span[0]) & (grid.step <= span[1])
    return {address: float(grid.value[i][inside].sum()) for i, address in enumerate(grid.addresses)}


def ledger(evidence: Evidence) -> Answer | None:
    """Which matrices lowered the loss of the probe batch, and which raised it."""
    found = balance(evidence.telemetry)
    if found is None or not found.change or not found.earned:
        return None
    sign = math.copysign(1.0, found.change)
    order = sorted(found.earned, key=lambda address: -sign * found.earned[address])
    best = [f"{a} ({percent(found.earned[a] / found.change)})" for a in order[:NAMED]]
    kinds: dict[str, float] = {}
    for address, value in found.earned.items():
        kind = address.rpartition(".")[2]
        kinds[kind] = kinds.get(kind, 0.0) + value
    by_kind = ", ".join(f"{k} {signed(v)}" for k, v in sorted(kinds.items(), key=lambda item: sign * -item[1]))
    worst = order[-1]
    direction = "fell" if sign < 0 else "rose"
    more = [
        f"From step {found.first_step:,} to {found.last_step:,}, all matrices together account for it to within "
        f"{number(abs(found.error))} nats ({percent(abs(found.error / found.change))})."
    ]
    more += [f"Change of the loss by kind of matrix, in nats: {by_kind}."]
    if sign * found.earned[worst] < 0:
        more.append(f"The movement of {worst} worked against it, by {number(abs(found.earned[worst]))} nats.")
    every = (evidence.telemetry.fact("ledger.probe") or {}).get("every", 1)
    if every > 1:
        more.append(
            f"Between entries, up to {every} updates apart, the path of training is approximated by a straight line."
        )
    numbers: dict[str, float | None] = {"change of the probe's loss (nats)": found.change}
    numbers |= {"not accounted for (nats)": found.error}
    numbers |= {f"{address} earned (nats)": found.earned[address] for address in order[:NAMED]}
    return Answer(
        key="ledger",
        question=f"Which matrices {'lowered' if sign < 0 else 'raised'} the loss?",
        sentence=f"{listed(best)} of the {number(abs(found.change))} nats by which the probe batch's loss {direction}.",
        more=tuple(more),
        numbers=numbers,
        address=order[0],
        measure=EARNED,
        weight=0.65 if abs(found.error) < CLOSES * abs(found.change) else 0.3,
        null="A matrix that does not move counts as 0. One whose effect the others undo counts against them.",
    )
