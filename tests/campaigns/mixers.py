"""Attention beside an LSTM of as many parameters on one text: rates tuned on each side, curves, loss by position.

    python tests/campaigns/mixers.py input.txt --tokenizer char --minutes 5 --seeds 3

Each side is a preset with everything else at its default; both see windows of the same length, and the LSTM is as
wide as it must be to have the parameters of the other. First every rate of a preset is multiplied by each of --factors,
one training of the whole budget each, seed 0; the best on the validation text is taken (the grid goes on where it lies
at an end), and the other seeds train with it. Budgets are those of whole commands. The n-gram is Kneser-Ney, its order
chosen on the validation text, which is in its favour.
"""

import argparse
import statistics
import tomllib
from pathlib import Path
from typing import Any

from command import fresh, machine, qkv, spread

RATES = {"muon": ("lr", "muon_lr"), "adamw": ("lr",), "sgd": ("lr",)}
"""Kind of optimizer -> its rates."""
MOST_STEPS = 3
"""How often the grid of factors may grow at an end."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--tokenizer", default="char")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--presets", nargs="+", default=["modern", "lstm"])
    parser.add_argument("--factors", nargs="+", type=float, default=[0.5, 1.0, 2.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--n-ctx", type=int, default=256)
    args = parser.parse_args()
    print(machine(), flush=True)
    folder, n_parameters = fresh(), 0
    words = ["train", args.text, "--tokenizer", args.tokenizer, "--minutes", str(args.minutes)]
    words += ["--no-report", "--watch", "off", "--set", f"n_ctx={args.n_ctx}"]
    for preset in args.presets:
        side = [*words, "--preset", preset, *(["--parameters", str(n_parameters)] if n_parameters else [])]
        factor, rates, found = tuned(side, folder, preset, sorted(args.factors))
        n_parameters = n_parameters or found["parameters"]
        print(f"{preset}, {found['parameters']:,} parameters: best with its rates times {factor:g}", flush=True)
        runs, losses, seconds = [], [], []
        for seed in range(1, args.seeds + 1):
            runs.append(folder / f"{preset}-{seed}")
            taken, found = qkv(*side, *_set(rates, factor), "--seed", str(seed), "--out", str(runs[-1]))
            losses.append(found["val_loss"])
            seconds.append(taken)
            print(told(f"{preset}, seed {seed}", taken, found), flush=True)
        mean = statistics.fmean(losses)
        print(f"{preset}: mean {mean:.4f} nats a token, {spread(losses)}; seconds {spread(seconds)}")
        print(
            f"n-gram of order {found['baselines']['ngram_order']}: {found['baselines_nats']['ngram']:.4f} nats a token"
        )
        curves(preset, runs)
        places(preset, runs)


def tuned(side: list[str], folder: Path, preset: str, factors: list[float]) -> tuple[float, dict[str, float], Any]:
    """(best factor, the preset's own rates, what its training printed)."""
    rates: dict[str, float] = {}
    tried: dict[float, Any] = {}
    ahead, steps = sorted(factors, key=lambda factor: factor != 1), 0
    while ahead:
        factor = ahead.pop(0)
        out = folder / f"{preset}-tune-{factor:g}"
        taken, tried[factor] = qkv(*side, *(_set(rates, factor) if rates else []), "--seed", "0", "--out", str(out))
        if not rates:
            optimizer = tomllib.loads((out / "config.toml").read_text())["training"]["optimizer"]
            rates = {name: optimizer[name] for name in RATES[optimizer["kind"]]}
        print(told(f"{preset}, rates times {factor:g}", taken, tried[factor]), flush=True)
        best = min(tried, key=lambda factor: tried[factor]["val_loss"])
        if not ahead and steps < MOST_STEPS and best in (min(tried), max(tried)):
            steps += 1
            ahead = [best / 2 if best == min(tried) else best * 2]
    return best, rates, tried[best]


def _set(rates: dict[str, float], factor: float) -> list[str]:
    return [word for name, rate in rates.items() for word in ("--set", f"{name}={rate * factor:.6g}")]


def told(what: str, seconds: float, found: dict[str, Any]) -> str:
    """One line of a training."""
    return (
        f"{what}: {found['val_loss']:.4f} nats a token, {found['bits_per_byte']:.4f} bits a byte,"
        f" {found['steps']} updates, {found['tokens']:,} tokens ({found['tokens_per_second']:,.0f} a second),"
        f" {seconds:.0f} s in all"
    )


def curves(preset: str, runs: list[Path]) -> None:
    """Validation loss by tokens, every run's."""
    from qkv import api

    for run in runs:
        telemetry = api.load(run).telemetry()
        steps = telemetry.steps()
        tokens = dict(zip(steps.step.tolist(), steps.tokens.tolist(), strict=True))
        points = (f"{tokens.get(row.step, 0):,} {row.loss:.3f}" for row in telemetry.evaluations())
        print(f"{preset}, {run.name}, nats after tokens: " + "; ".join(points))


def places(preset: str, runs: list[Path]) -> None:
    """Mean loss over runs by how many tokens were read."""
    found = [qkv("eval", str(run), "--by-position")[1]["by_position"] for run in runs]
    for rows in zip(*found, strict=True):
        first, last = rows[0]["first"], rows[0]["last"]
        losses = [row["loss"] for row in rows]
        print(f"{preset}, {first} to {last} tokens read: {statistics.fmean(losses):.4f} ({spread(losses)})")


if __name__ == "__main__":
    main()
