"""What differs between runs: settings, loss, and every matrix that they have with the same shape.

The distance of two matrices is |A - B| / sqrt((|A|^2 + |B|^2) / 2): 0 for equal ones, 1.41 for unrelated directions. It
depends on the basis: with another seed, a head may compute the same map in another basis. So for circuits (QK and OV)
only the norms are compared. Runs with different tokenizers are compared in bits per byte, and without matrices whose
rows are tokens. Of three and more, distances are from the first, and the table gives the lowest and the highest.

Example:
  qkv compare runs/my-1 runs/my-2
  qkv compare runs/my-1 runs/my-2 runs/my-3
  qkv compare runs/my-1 runs/my-2 --weights last --json
"""

import argparse
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from qkv.commands.arguments import a_run, add_json, add_weights, option
from qkv.commands.printing import damaged, screen
from qkv.config import flat
from qkv.errors import DamagedFileError
from qkv.jsontypes import JsonObject
from qkv.words import figure, listed

if TYPE_CHECKING:
    from torch import Tensor

    from qkv.api import Run

_OF_TOKENS = ("W_E", "W_U", "b_U")
"""Matrices whose rows or columns are tokens."""


def configure(parser: argparse.ArgumentParser) -> None:
    option(parser, "a RUN", "a run folder", a_run)
    option(parser, "b RUN", "another run folder", a_run)
    option(parser, "more RUN", "and others", a_run, nargs="*")
    add_weights(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    from qkv import api

    runs = [api.load(path, weights=args.weights) for path in (args.a, args.b, *args.more)]
    found = _found(runs, quietly=args.json)
    if args.json:
        return screen.print_json(found)
    names = [run.path.name for run in runs]
    names = names if len(set(names)) == len(names) else found["runs"]
    (_print_two if len(runs) == 2 else _print_many)(found, names)
    for caution in found["cautions"]:
        print(f"\n{caution}")


def _found(runs: "Sequence[Run]", quietly: bool) -> JsonObject:
    """The object of --json; damage is told on stderr unless `quietly`."""
    harm = [damaged.told(run, quietly=quietly) for run in {run.path: run for run in runs}.values()]
    matrices, circuits, unread = _weights(runs)
    if _of_other_tokens(runs):
        matrices = [row for row in matrices if row["address"].rpartition(".")[2] not in _OF_TOKENS]
    return {
        "runs": [str(run.path) for run in runs],
        "settings": _settings(runs),
        "figures": _figures(runs),
        "matrices": matrices,
        "circuits": circuits,
        "cautions": [*unread, *_cautions(runs)],
        "damaged": [one for of_run in harm for one in of_run],
    }


def _print_two(found: JsonObject, names: Sequence[str]) -> None:
    settings = [(path, *map(str, values)) for path, values in found["settings"].items()]
    screen.print_table(["setting", *names], settings or [("no setting differs", "", "")])
    print()
    figures = [(name, *map(_figure, values)) for name, values in found["figures"].items()]
    screen.print_table(["figure", *names], figures)
    print()
    rows = [
        (row["address"], _figure(row["norm"][0]), _figure(row["norm"][1]), row["words"] or _figure(row["distance"]),
         _figure(row["cosine"]))
        for row in found["matrices"]
    ]  # fmt: skip
    if rows:
        screen.print_table(["matrix", f"norm in {names[0]}", f"norm in {names[1]}", "distance", "cosine"], rows)
    circuits = [(row["circuit"], *map(_figure, row["norm"])) for row in found["circuits"]]
    if circuits:
        print()
        screen.print_table(["circuit (norm over heads)", *names], circuits)


def _print_many(found: JsonObject, names: Sequence[str]) -> None:
    figures, settings = found["figures"], found["settings"]
    rows = []
    for i, name in enumerate(names):
        differs = ", ".join(f"{path.rpartition('.')[2]}={values[i]}" for path, values in settings.items())
        rows.append((name, *(_figure(values[i]) for values in figures.values()), differs))
    screen.print_table(["run", *figures, "settings that differ"], rows)
    if found["matrices"]:
        columns = ["matrix", "lowest norm", "highest norm", f"least distance from {names[0]}", "largest distance", ""]
        ends = (
            (row["address"], *_ends(row["norm"]), *_ends(row["distance"]), row["words"]) for row in found["matrices"]
        )
        print()
        screen.print_table(columns, list(ends))
    if found["circuits"]:
        circuits = [(row["circuit"], *_ends(row["norm"])) for row in found["circuits"]]
        print()
        screen.print_table(["circuit (norm over heads)", "lowest", "highest"], circuits)


def _ends(values: Sequence[float | None]) -> tuple[str, str]:
    """The lowest and the highest, of those that there are."""
    there = [value for value in values if value is not None]
    return (_figure(min(there)), _figure(max(there))) if there else ("", "")


def _figure(value: object) -> str:
    if isinstance(value, float):
        return figure(value)
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _settings(runs: "Sequence[Run]") -> dict[str, list[object]]:
    """Setting by dotted path -> its values, where they differ."""
    tables: list[dict[str, object]] = [flat(run.config) for run in runs]
    paths = dict.fromkeys(path for table in tables for path in table)
    found: dict[str, list[object]] = {path: [table.get(path) for table in tables] for path in paths}
    return {path: values for path, values in found.items() if any(value != values[0] for value in values)}


def _figures(runs: "Sequence[Run]") -> dict[str, list[object]]:
    """Figures of all; without losses per token where tokens are not the same. Any linear model is in stored_loss."""
    from qkv.commands.printing.outcome import answers_loss

    summaries = [{"stored_loss": answers_loss(run.summary, run.task)} | run.summary for run in runs]
    names = ["stored_loss"] * any("stored_loss" in run.summary for run in runs)
    names += [] if len(_of_other_tokens(runs)) > 1 else ["val_loss", "last_val_loss"]
    names += dict.fromkeys(run.task.metric for run in runs if run.task.judged)
    names += ["bits_per_byte", "best_step", "steps", "tokens", "train_seconds", "parameters"]
    return {name: [summary.get(name) for summary in summaries] for name in names}


def _weights(runs: "Sequence[Run]") -> tuple[list[JsonObject], list[JsonObject], list[str]]:
    """Matrices, circuits, and no sentence; or neither and why, where the weights of a run are damaged."""
    first, pairs = runs[0], []
    try:
        norms = _circuit_norms(first)
        for other in runs[1:]:
            pairs.append((_matrices(first, other), _circuit_norms(other)))
            if len(runs) > 2:
                vars(other).pop("model", None)  # one of many is in memory at a time
    except DamagedFileError as error:
        return [], [], [f"The matrices are not compared: {error}."]
    sides = [norms, *(other for _, other in pairs)]
    names = dict.fromkeys(name for side in sides for name in side)
    circuits: list[JsonObject] = [{"circuit": name, "norm": [side.get(name) for side in sides]} for name in names]
    return pairs[0][0] if len(runs) == 2 else _merged([rows for rows, _ in pairs]), circuits, []


def _merged(pairs: Sequence[Sequence[JsonObject]]) -> list[JsonObject]:
    """The rows of several pairs with the same first run as one list: norms of all runs, distances from the first."""
    by_address = [{row["address"]: row for row in rows} for rows in pairs]
    merged = []
    for address in dict.fromkeys(address for rows in by_address for address in rows):
        rows = [side.get(address, {}) for side in by_address]
        first = next(row["norm"][0] for row in rows if row)
        words = dict.fromkeys(row.get("words", "") for row in rows if row)
        merged.append(
            {
                "address": address,
                "norm": [first, *(row["norm"][1] if row else None for row in rows)],
                "words": "; ".join(filter(None, words)),
                **{name: [row.get(name) for row in rows] for name in ("distance", "cosine")},
            }
        )
    return merged


def _matrices(a: "Run", b: "Run") -> list[JsonObject]:
    """One row for each matrix of either run, in canonical order; one under two names stands with that which is two."""
    from qkv.models.matrices import Catalogue

    sides = [Catalogue(run.model) for run in (a, b)]
    first = {address for side in sides for address in side.addresses}
    named = [[entry for entry in side.named() if entry.address in first] for side in sides]
    values = [{e.address: (e.parameter.T if e.transposed else e.parameter).detach() for e in side} for side in named]
    rows = []
    for address in {**values[0], **values[1]}:
        pair = [side.get(address) for side in values]
        norms = [None if m is None else float(m.double().norm()) for m in pair]
        row = {"address": address, "norm": norms, "distance": None, "cosine": None, "words": ""}
        one, other = pair
        if one is None or other is None:
            row["words"] = f"only in {(b if one is None else a).path.name}"
        elif one.shape != other.shape:
            row["words"] = f"{list(one.shape)} and {list(other.shape)}"
        elif one.equal(other):
            row |= {"words": "identical", "distance": 0.0, "cosine": 1.0}
        else:
            row |= _apart(one.double(), other.double())
        rows.append(row)
    return rows


def _apart(one: "Tensor", other: "Tensor") -> dict[str, float | None]:
    """Distance and cosine of two unequal matrices; no cosine where one of them is zero."""
    a, b = float(one.norm()), float(other.norm())
    distance = float((one - other).norm()) / math.sqrt((a**2 + b**2) / 2)
    return {"distance": distance, "cosine": float((one * other).sum()) / (a * b) if a and b else None}


def _circuit_norms(side: "Run") -> dict[str, float]:
    """The norm of all heads' QK and of all heads' OV, by layer: properties of the function.

    `L0.QK`, `dec.L1.cross.OV`, ...; none in a model without attention.
    """
    from qkv.instruments.spectra import circuits
    from qkv.models.matrices import Catalogue

    catalogue, squares = Catalogue(side.model), {}
    for circuit in circuits(catalogue.named()):
        name = circuit.address.rpartition("H")[0] + circuit.address.rpartition(".")[2]
        squares[name] = squares.get(name, 0.0) + float(catalogue.circuit(circuit.address).norm()) ** 2
    return {name: math.sqrt(square) for name, square in squares.items()}


def _cautions(runs: "Sequence[Run]") -> list[str]:
    cautions = []
    if len(seeds := dict.fromkeys(run.config.seed for run in runs)) > 1:
        cautions.append(
            f"The seeds differ ({listed([str(seed) for seed in seeds])}), so the runs began with different matrices. A"
            " distance near 1.41 comes from that, not from training: compare circuits and losses."
        )
    if hidden := _of_other_tokens(runs):
        bits = " Bits per byte are comparable on the same text." if len(hidden) > 1 else ""
        cautions.append(f"The tokenizers differ, so {listed(hidden)} are of different tokens and not compared.{bits}")
    if any(f"attention_{run.task.metric}" in run.summary for run in runs):
        stored = any("stored_loss" in run.summary for run in runs)
        whole = "; `stored_loss` is of the answers, with the linear model" if stored else ""
        cautions.append(f"`val_loss` and `last_val_loss` are of attention alone{whole}.")
    trained = [run for run in runs if not run.config.imported]
    if len({_data(run) for run in trained}) > 1:
        cautions.append("The runs were trained and validated on different texts, so their losses are not comparable.")
    return cautions


def _of_other_tokens(runs: "Sequence[Run]") -> list[str]:
    """What is not compared, since the tokens of the runs are not the same; losses per token come second."""
    first, *others = [None if run.namer is None else run.namer.vocabulary for run in runs]
    hidden = ["rows of W_E"] + ["losses per token"] * any(run.task.target == "token" for run in runs)
    return hidden if any(other != first for other in others) else []


def _data(run: "Run") -> str:
    """What tells a run's data from others': the hash of what was read; of an unfinished run where it was read."""
    data = run.folder.read_manifest().get("data") if run.folder.is_finished else None
    return (data or {}).get("sha256") or f"{run.config.data.source} {run.config.data.val}"
