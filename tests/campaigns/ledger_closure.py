"""How far the ledger is from closing, against the updates between two entries and the panels of Simpson's rule.

    python tests/campaigns/ledger_closure.py [--steps 200] [--every 1 5 20] [--panels 1 4 0]

Trains the same small character model (2 layers, d_model 64, Muon, a text of this script's own making) once for each
pair, and prints the error of the sum as a share of the loss change. Panels 0 are as many as the ledger needs (at most
8). Deterministic; needs no data. Some minutes.
"""

import argparse
import contextlib
import io
import itertools
import tempfile
from pathlib import Path

import qkv
from qkv.inspection.answers.ledger import balance
from qkv.randomness import generator

SET = {"d_model": 64, "n_layers": 2, "n_heads": 2, "n_ctx": 64, "batch_size": 8}


def text() -> str:
    draws = generator("benchmark", "ledger")
    words = [("the cat", "a dog", "the king", "a queen"), ("sees", "likes", "meets"), ("home", "the sea", "a tree")]
    return "\n".join(
        f"{draws.choice(words[0])} {draws.choice(words[1])} {draws.choice(words[0])} at {draws.choice(words[2])}."
        for _ in range(1500)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, nargs="+", default=[1, 5, 20])
    parser.add_argument("--panels", type=int, nargs="+", default=[1, 4, 0])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "text.txt"
        source.write_text(text(), encoding="utf-8")
        print("| updates between entries | panels | passes an update | change of the loss, nats | error | share |")
        print("|---|---|---|---|---|---|")
        for every, panels in itertools.product(args.every, args.panels):
            out = Path(folder) / f"{every}-{panels}"
            more = {"ledger.every": every, "ledger.windows": 4, "ledger.panels": max(1, panels)}
            more["ledger.most_panels"] = panels or 8
            with contextlib.redirect_stderr(io.StringIO()):
                qkv.train(
                    source, out=out, steps=args.steps, tokenizer="char", set=SET | more, watch="off", report=False,
                    threads=1, precision="fp32",
                )  # fmt: skip
            with qkv.load(out).telemetry() as telemetry:
                found, passes = balance(telemetry), telemetry.fact("ledger")["passes"]
            assert found is not None
            used = panels or "as needed"
            print(
                f"| {every} | {used} | {passes / args.steps:.1f} | {found.change:.4f} | {found.error:+.5f}"
                f" | {abs(found.error / found.change):.3%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
