"""`qkv show RUN --all`: the answers read from the run in order of weight, then one measure of every matrix by layer."""

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from qkv.commands.printing import heat, screen
from qkv.errors import AddressError, UserError
from qkv.folder.kept_answers import keep
from qkv.inspection.answers.matrices import against_control
from qkv.inspection.answers.reading import Answer, read
from qkv.instruments.ledger import check_kept
from qkv.instruments.measures import norm
from qkv.instruments.pieces import entry_row
from qkv.jsontypes import JsonObject
from qkv.telemetry import Compared, MatrixRow
from qkv.words import figure

if TYPE_CHECKING:
    from qkv.api import Run

COLUMNS = ("norm", "drift", "turn", "update_ratio", "grad_norm")
"""Measures of the long table, those of them that were recorded."""

COLUMNS_AT_REST = ("norm", "spectral_norm", "stable_rank", "effective_rank")
"""The same of an imported model, in which nothing has moved."""


LONGEST_LINE = 110


@dataclass(frozen=True)
class RunShown:
    """The matrices of one run: one measure layer by layer, and the last values of the others."""

    run: "Run"
    answers: list[Answer]
    measure: str
    steps: np.ndarray
    curves: dict[str, np.ndarray]
    """Address -> `measure` at `steps`."""
    null: list[Compared]
    """Each matrix beside the random-label control at the last step that both have, falling by their ratio."""
    rows: list[MatrixRow]
    at: int | None = None
    """The step that was asked for; then there are no answers, which are of the whole run."""
    compared: str = ""
    """How far matrices moved beside the random-label control; empty where that is not known, or said by an answer."""

    def in_short(self) -> list[tuple[str, str]]:
        """Each question with its answer in a line."""
        return [(answer.question, answer.brief or answer.sentence) for answer in self.answers]

    def as_json(self) -> JsonObject:
        """The answers, and the last value of every measure by address."""
        return {
            "run": str(self.run.path),
            **({} if self.at is None else {"asked": self.at}),
            "summary": self.run.summary,
            "answers": [vars(answer) for answer in self.answers],
            **({"lora": lora} if (lora := self.run.lora) else {}),
            "matrices": {row.about.address: {"step": row.step, **row.values} for row in self.rows},
            "against_null": {
                pair.address: {"measure": self.measure, "step": pair.step, "value": pair.value, "null": pair.null}
                for pair in self.null
            },
        }

    def print(self) -> None:
        """Answers first, the most telling on top, then the layer x matrix table, then every matrix."""
        for rank, answer in enumerate(self.answers, 1):
            print_answer(rank, answer)
        if self.at is not None:
            print(f"Last measured up to step {self.at:,}. The answers cover the whole run: leave out --at for them.\n")
        self._print_layers()
        columns = COLUMNS_AT_REST if self.run.config.imported and not self.run.config.history else COLUMNS
        names, lora = [name for name in columns if any(name in row.values for row in self.rows)], self.run.lora
        table = [
            (row.about.address + " (lora)" * (row.about.address in lora), " x ".join(map(str, row.about.shape)),
             *(figure(row.values.get(name)) for name in names),
             screen.sparkline(self.curves.get(row.about.address, np.zeros(0)).tolist(), 24))
            for row in self.rows if row.about.kind not in ("QK", "OV") and row.about.head is None
        ]  # fmt: skip
        print()
        screen.print_table(["matrix", "shape", *names, f"{self.measure} over steps"], table)
        if lora:
            print("(lora): the initial matrix plus the trained product of two factors; every measure is of their sum.")

    def _print_layers(self) -> None:
        """Rows are layers (L0, dec.L0, dec.L0.cross), columns kinds of matrices."""
        from rich.text import Text

        found = [r.about for r in self.rows if r.about.head is None and r.about.layer is not None]
        cells = {(row.address.rpartition(".")[0], row.kind): row.address for row in found if row.kind.startswith("W_")}
        layers = list(dict.fromkeys(layer for layer, _ in cells))
        kinds = list(dict.fromkeys(kind for _, kind in cells))
        last = {address: float(curve[-1]) for address, curve in self.curves.items() if len(curve)}
        if not layers or not last:
            return
        top = max((abs(v) for v in last.values() if np.isfinite(v)), default=0.0)
        rows = []
        for layer in layers:
            row: list[str | Text] = [layer]
            for kind in kinds:
                value = last.get(cells.get((layer, kind), ""))
                block = heat.strip(np.array([value or 0.0]), colour=screen.console().is_terminal, largest=top)
                row.append(Text.assemble(figure(value), " ", block))
            rows.append(row)
        screen.print_table([f"{self.measure} at step {int(self.steps[-1]):,}", *kinds], rows)
        if self.compared:
            print(self.compared)


def print_answer(rank: int, answer: Answer) -> None:
    """Rank and question, and under them the sentences, folded to the screen; one line each in a pipe."""
    from rich.text import Text

    console = screen.console()
    console.print(Text(f"{rank}. {answer.question}", style="bold"))
    for sentence, style in (*((s, "") for s in (answer.sentence, *answer.more)), (answer.null, "dim")):
        if sentence:
            lines = [screen.shown(sentence)]
            if console.is_terminal:
                lines = textwrap.wrap(lines[0], min(LONGEST_LINE, console.width) - 2)
            console.print(Text("\n".join(f"  {line}" for line in lines), style=style))
    console.print()


def look(run: "Run", measure: str, at: int | None, *, with_answers: bool = True) -> RunShown:
    """Read what `print` shows, as it was at step `at` or at the end.

    Of a run whose telemetry is damaged these are the norms of its weights, which do not come from it.

    Raises AddressError for a measure that was not recorded, UserError for a step that the run has not reached.
    """
    check_kept(measure, run.config.ledger)
    with run.recorded() as telemetry:
        if telemetry.is_lost:
            return RunShown(run, [], "norm", np.zeros(0), {}, [], _of_weights(run, at), at)
        last = max(telemetry.ends()[1], telemetry.last_recorded())
        if at is not None and at > last:
            raise UserError(
                f"{run.path} has no step {at:,}: its last recorded step is {last:,}; give a step up to that"
            )
        rows = telemetry.latest(at=at)
        known = [m.name for m in telemetry.measures()]
        curves: dict[str, np.ndarray] = {}
        steps, pairs, compared = np.zeros(0), [], ""
        if known or measure != "drift":
            grid = telemetry.grid(measure)
            kept = grid.step <= at if at is not None else np.ones(len(grid.step), dtype=bool)
            steps = grid.step[kept]
            curves = {address: grid.value[i][kept] for i, address in enumerate(grid.addresses)}
            try:
                pairs = telemetry.against_null(measure, at=at)
            except AddressError:
                pairs = []
            pairs = [pair for pair in pairs if pair.step > 0]  # at step 0 both have the same weights
        answers = read(run.path, telemetry) if at is None and with_answers else []
        weights = sorted(
            (pair for pair in pairs if pair.null > 0 and pair.address.rpartition(".")[2].startswith("W_")),
            key=lambda pair: -pair.value / pair.null,
        )
        if weights and measure == "drift" and not answers:
            compared = against_control(telemetry, weights)
    if answers and run.folder.is_finished and not run.damage():
        keep(run.folder, [(answer.question, answer.brief or answer.sentence) for answer in answers])
    return RunShown(run, answers, measure, steps, curves, pairs, rows, at, compared)


def _of_weights(run: "Run", at: int | None) -> list[MatrixRow]:
    """The norm of every matrix, from the weights of step `at` where they were kept, else from the last ones."""
    step = at if at in run.snapshots() else None
    when, catalogue = int(run.summary.get("steps") or 0) if step is None else step, run.catalogue(step)
    return [MatrixRow(entry_row(e, catalogue), when, {"norm": norm(e.parameter.detach())}) for e in catalogue]
