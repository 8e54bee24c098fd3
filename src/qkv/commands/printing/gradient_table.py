"""Gradient path, logit lens and attribution of one text as tables and JSON, for the commands that show them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from qkv.commands.printing import screen
from qkv.jsontypes import JsonObject
from qkv.words import decimals, figure, number, signed

if TYPE_CHECKING:
    from qkv.inspection.attribution import Direct
    from qkv.inspection.lens import LensLayer
    from qkv.instruments.gradients import GradientPath
    from qkv.tokenizers.tokenizer import Tokenizer

N_ROWS = 8


def path_json(path: "GradientPath", tokenizer: "Tokenizer") -> JsonObject:
    """Shares of each block, by sublayers crossed, and of each token's row of W_E."""
    by_row = {name: values.tolist() for name, values in path.rows.shares_by_row().items()}
    norms = path.rows.total.norm(dim=-1).tolist()
    rows = [
        {
            "id": int(i),
            "token": tokenizer.token(int(i)),
            "grad_norm": norms[n],
            "shares": {name: values[n] for name, values in by_row.items()},
        }
        for n, i in enumerate(path.row_ids)
    ]
    return {
        "loss": path.loss,
        "blocks": [{"address": b.address, "grad_norm": b.norm, "shares": b.shares} for b in path.blocks],
        "sublayers_crossed": {str(n): share for n, share in path.crossed.items()},
        "rows": rows,
    }


def print_path(path: "GradientPath", tokenizer: "Tokenizer") -> None:
    """Where the gradient comes from, block by block, then at the embedding rows."""
    print(f"Gradient of this text's loss ({number(path.loss, 3)} nats per target) by path. Shares sum to 1.")
    names = list(path.blocks[0].parts)
    table = [
        (block.address, *(decimals(block.shares[name], signed=True) for name in names), figure(block.norm))
        for block in path.blocks
    ]
    screen.print_table(["at", *names, "|gradient|"], table)
    some = [f"{n}: {decimals(share, signed=True)}" for n, share in path.crossed.items()]
    print(f"By the number of sublayers on the way to {path.blocks[0].address}: {', '.join(some)}.\n")
    norms = path.rows.total.norm(dim=-1).numpy()
    by_row = path.rows.shares_by_row()
    rows = [
        (
            row_address(int(path.row_ids[n]), tokenizer),
            figure(float(norms[n])),
            *(decimals(float(values[n]), signed=True) for values in by_row.values()),
        )
        for n in np.argsort(-norms, kind="stable")[:N_ROWS]
    ]
    screen.print_table(["rows pulled at most", "|gradient|", *by_row], rows)


def row_address(i: int, tokenizer: "Tokenizer") -> str:
    """The address of a token's row: by its text where that means this token, else by its number, the text behind it."""
    text = tokenizer.token(i)
    shown = screen.token(text)
    means_it = tokenizer.readable.get(text) == i and shown == text
    return f"W_E[{shown}]" if means_it else f"W_E[{i}] '{shown}'"


def print_lens(layers: "Sequence[LensLayer]", tokenizer: "Tokenizer", tokens: Sequence[str]) -> None:
    """How good each layer's answer would be, and what it would be at the last of `tokens` that is read.

    A causal model is asked for the last token and does not read it.
    """
    n = len(layers[0].top)
    last = screen.quoted(tokens[n - 1])
    print(
        "Logit lens: what the model would answer if it ended after each layer,"
        f" at {last}, token {n} of {len(tokens)}. The most probable tokens come first."
    )
    rows = []
    for layer in layers:
        likeliest = zip(layer.top[-1].tolist(), layer.top_probability[-1].tolist(), strict=True)
        words = [f"{screen.token(tokenizer.token(i))} {p:.2f}" for i, p in likeliest]
        rows.append((layer.address, f"{layer.loss:.4f}", f"{layer.kl:.4f}", f"{layer.agreement:.2f}", *words))
    columns = ["after", "loss, nats", "KL from the last", "same first token", *[""] * len(layers[0].top[-1])]
    screen.print_table(columns, rows)


def direct_json(found: "Direct", tokenizer: "Tokenizer") -> JsonObject:
    """Nats of each part; they sum to `log_odds`."""
    return {
        "position": found.position,
        "answers": [tokenizer.token(i) for i in found.answers],
        "log_odds": found.log_odds,
        "embed": found.embed,
        "mixer": found.mixer.tolist(),
        "heads": None if found.heads is None else found.heads.tolist(),
        "mlp": None if found.mlp is None else found.mlp.tolist(),
        "biases": found.biases,
    }


def print_direct(found: "Direct", tokenizer: "Tokenizer", tokens: Sequence[str]) -> None:
    """What each head and MLP writes into the answer, a line for each layer."""
    a, b = (screen.quoted(tokenizer.token(i)) for i in found.answers)
    where = f"{screen.quoted(tokens[found.position])}, token {found.position + 1} of {len(tokens)}"
    print(f"At {where}, the model prefers {a} to {b} by {signed(found.log_odds)} nats. Each part contributes:")
    heads = 0 if found.heads is None else found.heads.shape[1]
    blank = ["" for _ in range(heads)]
    rows: list[tuple[str, ...]] = [("embedding", *blank, "", "", f"{found.embed:+.3f}")]
    for layer, mixer in enumerate(found.mixer.tolist()):
        each = [] if found.heads is None else [f"{value:+.3f}" for value in found.heads[layer].tolist()]
        mlp = 0.0 if found.mlp is None else float(found.mlp[layer])
        rows.append(
            (f"L{layer}", *each, f"{mixer:+.3f}", f"{mlp:+.3f}" if found.mlp is not None else "", f"{mixer + mlp:+.3f}")
        )
    rows.append(("biases", *blank, "", "", f"{found.biases:+.3f}"))
    mixes = "attention" if found.heads is not None else "mixer"
    screen.print_table(["", *(f"H{head}" for head in range(heads)), mixes, "MLP", "in all"], rows)
