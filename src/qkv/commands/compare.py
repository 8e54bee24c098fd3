"""What differs between two runs: settings, loss, and every matrix that both have with the same shape.

The distance of two matrices is |A - B| / sqrt((|A|^2 + |B|^2) / 2): 0 for equal ones, 1.41 for unrelated directions. It
depends on the basis: with another seed, a head may compute the same map in another basis. So for circuits (QK and OV)
only the norms are compared. Runs with different tokenizers are compared in bits per byte, and without matrices whose
rows are tokens.

Example:
  qkv compare runs/my-1 runs/my-2
  qkv compare runs/my-1 runs/my-2 --weights last --json
"""

import argparse
import math
from typing import TYPE_CHECKING

from qkv.commands.arguments import a_run, add_json, add_weights
from qkv.commands.printing import damaged, screen
from qkv.config import flat
from qkv.errors import DamagedFileError
from qkv.jsontypes import JsonObject
from qkv.words import figure

if TYPE_CHECKING:
    from torch import Tensor

    from qkv.api import Run
    from qkv.models.parts import Entry

_OF_TOKENS = ("W_E", "W_U", "b_U")
"""Matrices whose rows or columns are tokens."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("a", type=a_run, metavar="RUN", help="a run folder")
    parser.add_argument("b", type=a_run, metavar="RUN", help="another run folder")
    add_weights(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Do it, print, and return the exit status."""
    from qkv import api

    a, b = api.load(args.a, weights=args.weights), api.load(args.b, weights=args.weights)
    harm = [damaged.told(run, quietly=args.json) for run in ((a,) if a.path == b.path else (a, b))]
    vocabularies_differ = _vocabulary(a) != _vocabulary(b)
    matrices, circuits, unread = _weights(a, b)
    if vocabularies_differ:
        matrices = [row for row in matrices if row["address"].rpartition(".")[2] not in _OF_TOKENS]
    found = {
        "runs": [str(a.path), str(b.path)],
        "settings": _settings(a, b),
        "figures": _figures(a, b, vocabularies_differ),
        "matrices": matrices,
        "circuits": circuits,
        "cautions": [*unread, *_cautions(a, b)],
        "damaged": [one for of_run in harm for one in of_run],
    }
    if args.json:
        screen.print_json(found)
        return 0
    names = [a.path.name, b.path.name] if a.path.name != b.path.name else found["runs"]
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
    for caution in found["cautions"]:
        print(f"\n{caution}")
    return 0


def _figure(value: object) -> str:
    if isinstance(value, float):
        return figure(value)
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _settings(a: "Run", b: "Run") -> dict[str, list[object]]:
    """Setting by dotted path -> its two values, where they differ."""
    left, right = flat(a.config), flat(b.config)
    return {path: [left.get(path), right.get(path)] for path in {**left, **right} if left.get(path) != right.get(path)}


def _figures(a: "Run", b: "Run", vocabularies_differ: bool) -> dict[str, list[object]]:
    """Figures of both; without losses per token where tokens are not the same."""
    names = ["bits_per_byte", "best_step", "steps", "tokens", "train_seconds", "parameters"]
    names = names if vocabularies_differ else ["val_loss", "last_val_loss", *names]
    return {name: [a.summary.get(name), b.summary.get(name)] for name in names}


def _weights(a: "Run", b: "Run") -> tuple[list[JsonObject], list[JsonObject], list[str]]:
    """`_matrices`, `_circuits`, and no sentence; or neither and why, where the weights of a run are damaged."""
    try:
        return _matrices(a, b), _circuits(a, b), []
    except DamagedFileError as error:
        return [], [], [f"The matrices are not compared: {error}."]


def _matrices(a: "Run", b: "Run") -> list[JsonObject]:
    """One row for each matrix of either run, in canonical order; one under two names stands with that which is two."""
    from qkv.models.matrices import Catalogue

    sides = [Catalogue(run.model) for run in (a, b)]
    first = {address for side in sides for address in side.addresses}
    values = [{e.address: _in_out(e) for e in side.named() if e.address in first} for side in sides]
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


def _in_out(entry: "Entry") -> "Tensor":
    """Its values, [in, out] under this name."""
    return (entry.parameter.T if entry.transposed else entry.parameter).detach()


def _apart(one: "Tensor", other: "Tensor") -> dict[str, float | None]:
    """Distance and cosine of two unequal matrices; no cosine where one of them is zero."""
    a, b = float(one.norm()), float(other.norm())
    distance = float((one - other).norm()) / math.sqrt((a**2 + b**2) / 2)
    return {"distance": distance, "cosine": float((one * other).sum()) / (a * b) if a and b else None}


def _circuits(a: "Run", b: "Run") -> list[JsonObject]:
    """Per layer the norm of all heads' QK, and of all heads' OV: properties of the function."""
    rows = []
    sides = [_circuit_norms(side) for side in (a, b)]
    for circuit in {**sides[0], **sides[1]}:
        rows.append({"circuit": circuit, "norm": [side.get(circuit) for side in sides]})
    return rows


def _circuit_norms(side: "Run") -> dict[str, float]:
    """`L0.QK`, `dec.L1.cross.OV`: of every attention there is; none in a model without."""
    from qkv.instruments.spectra import circuits
    from qkv.models.matrices import Catalogue

    catalogue, squares = Catalogue(side.model), {}
    for circuit in circuits(catalogue.named()):
        name = circuit.address.rpartition("H")[0] + circuit.address.rpartition(".")[2]
        squares[name] = squares.get(name, 0.0) + float(catalogue.circuit(circuit.address).norm()) ** 2
    return {name: math.sqrt(square) for name, square in squares.items()}


def _cautions(a: "Run", b: "Run") -> list[str]:
    cautions = []
    if a.config.seed != b.config.seed:
        cautions.append(
            f"The seeds differ ({a.config.seed} and {b.config.seed}), so the two began with different matrices. A"
            " distance near 1.41 comes from that, not from training: compare circuits and losses."
        )
    if _vocabulary(a) != _vocabulary(b):
        cautions.append(
            "The tokenizers differ, so rows of W_E and losses per token are of different tokens and not compared."
            " Bits per byte are comparable on the same text."
        )
    if _data(a) != _data(b) and not (a.config.imported or b.config.imported):
        cautions.append("The two were trained and validated on different texts, so their losses are not comparable.")
    return cautions


def _vocabulary(run: "Run") -> object:
    """What tells whether the tokens of two runs are the same."""
    return None if run.namer is None else run.namer.vocabulary


def _data(run: "Run") -> str:
    """What tells a run's data from others': the hash of what was read; of an unfinished run where it was read."""
    data = run.folder.read_manifest().get("data") if run.folder.is_finished else None
    return (data or {}).get("sha256") or f"{run.config.data.source} {run.config.data.val}"
