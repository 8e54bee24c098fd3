"""Contextual vectors of texts: what each token has become after each layer, or the mean over a text's tokens.

Layer 0 is what enters the first block (the static row of W_E with its position); -1 is the last. Vectors of different
runs have different bases: compare cosines within a run, never coordinates across runs.

Example:
  qkv embed runs/my-1 "the cat sat" "a dog stood"
  qkv embed runs/my-1 "the cat sat" --per-token --layer 0
  qkv embed runs/my-1 --measures
  qkv embed runs/my-1 --json < sentences.txt > vectors.json
"""

import argparse
import shlex
from typing import TYPE_CHECKING

from qkv.commands.arguments import add_json, add_run, add_weights, option
from qkv.commands.printing import screen
from qkv.commands.texts import read_texts
from qkv.errors import UserError
from qkv.jsontypes import JsonObject
from qkv.words import figure

if TYPE_CHECKING:
    import numpy as np

    from qkv.api import Run

N_COMPONENTS = 6


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    option(parser, "texts TEXT", "the texts; or one a line from stdin", nargs="*")
    option(parser, "--layer N", "0 is the first, -1 (default) the last; or 'all'")
    option(parser, "--per-token", "one vector per token instead of their mean")
    option(parser, "--measures", "how contextual each layer is, with baselines; without TEXT, on the validation text")
    add_weights(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    from qkv import api

    loaded = api.load(args.run, weights=args.weights)
    if args.measures and (args.layer is not None or args.per_token):
        option = "--per-token" if args.layer is None else "--layer"
        raise UserError(f"--measures tells of every layer and all tokens; leave {option} out")
    if args.measures:
        return _measures(loaded, args.texts, args.json)
    found = loaded.embed(read_texts(args.texts, f"qkv embed {shlex.quote(args.run)}"))
    names = found[0].layers
    layers: list[int | str] = list(names) if args.layer == "all" else [_layer(args.layer or "-1")]
    outputs = []
    for item in found:
        by_layer = {_name(names, layer): item.at(layer) for layer in layers}
        vectors = by_layer if args.per_token else {name: values.mean(axis=0) for name, values in by_layer.items()}
        offsets = None if item.offsets is None else item.offsets.tolist()
        outputs.append({"text": item.text, "tokens": item.tokens, "offsets": offsets, "vectors": vectors})
    if args.json:
        return screen.print_json({"run": str(loaded.path), "per_token": args.per_token, "outputs": outputs})
    for layer in (_name(names, layer) for layer in layers):
        rows = [row for output in outputs for row in _rows(output, layer, args.per_token)]
        print(f"{layer}: {len(rows[0][1])} components")
        _print(rows)


def _measures(loaded: "Run", texts: list[str], as_json: bool) -> None:
    """One line a layer: similarities, isotropy and the probe, each beside its baseline."""
    found = loaded.layer_measures(texts)
    start = loaded.layer_measures(texts, at=0) if 0 in loaded.snapshots() else []
    if as_json:
        layers = [dict(vars(layer)) for layer in found]
        return screen.print_json({"run": str(loaded.path), "layers": layers, "step_0": [dict(vars(m)) for m in start]})
    print(
        f"{found[0].n_vectors:,} vectors per layer. Next to each similarity is its baseline: random pairs, or the\n"
        f"same groups shuffled. The probe tells {found[0].n_classes} tokens apart, on windows it was not trained on.\n"
    )
    columns = ["layer", "random pairs", "self-similarity", "in a window", "(shuffled)", "explained", "(shuffled)"]
    columns += ["isotropy", "probe", "(shuffled)", "(commonest)", "(at step 0)"]
    rows = []
    for i, m in enumerate(found):
        figures = [m.random_pairs, m.self_similarity, m.in_window, m.in_window_random, m.explained, m.explained_random]
        figures += [m.isotropy, m.probe, m.probe_control, m.n_largest, start[i].probe if start else None]
        rows.append((m.layer, *("\u2014" if value is None else f"{value:.3f}" for value in figures)))
    screen.print_table(columns, rows)


def _layer(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text


def _name(names: list[str], layer: int | str) -> str:
    return names[layer] if isinstance(layer, int) and -len(names) <= layer < len(names) else str(layer)


def _rows(output: JsonObject, layer: str, per_token: bool) -> "list[tuple[str, np.ndarray]]":
    values = output["vectors"][layer]
    if not per_token:
        return [(output["text"], values)]
    return list(zip(output["tokens"], values, strict=True))


def _print(rows: "list[tuple[str, np.ndarray]]") -> None:
    """The first components of each vector, and the cosine of each two where they are few."""
    import numpy as np

    few = len(rows) <= 12
    labels = [screen.token(label)[:40] for label, _ in rows]
    vectors = np.stack([vector for _, vector in rows])
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
    cosines = unit @ unit.T
    columns = ["", "norm", *(f"[{i}]" for i in range(min(N_COMPONENTS, vectors.shape[1])))]
    columns += [f"cos {i + 1}" for i in range(len(rows))] if few and len(rows) > 1 else []
    table = []
    for i, (label, vector) in enumerate(zip(labels, vectors, strict=True)):
        row = [f"{i + 1} {label}", figure(float(np.linalg.norm(vector)))]
        row += [figure(float(value)) for value in vector[:N_COMPONENTS]]
        table.append(row + ([f"{cosine:.3f}" for cosine in cosines[i]] if few and len(rows) > 1 else []))
    screen.print_table(columns, table)
