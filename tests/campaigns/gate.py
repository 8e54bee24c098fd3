"""Nights of tries: keeping whatever looks better, against the gate of `qkv trial`, on differences of real trainings.

    python tests/campaigns/gate.py bank --out bank.json --seeds 24   # short trainings, two equal arms a seed
    python tests/campaigns/gate.py nights --bank bank.json --tries 2000   # tries without a gain, and with 1, 2 and 4 sd

The bank holds differences between two arms of the same settings. Paired arms that are equal differ by exactly 0, which
proves nothing, so here they share their initial values and read their batches by different seeds. A try without a gain
draws differences from the bank with a random sign each; a true gain of g standard deviations is subtracted from them.
Greedy trains one pair and keeps NEW if it is lower. A night is 100 tries; a false keep is anything kept without a gain.
The laws below stand beside the bank. For comparison: the scale-mixture sequential t-test, with the same division of
the error.
"""

import argparse
import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from qkv.config import override
from qkv.recipe import Request, assemble, resolve
from qkv.recipe.training import bits_per_byte
from qkv.studies.gate.sequential import alpha, decide

NIGHT, MAX_SEEDS = 100, 40
SIZES = {"d_model": 32, "n_layers": 1, "n_heads": 2, "n_ctx": 32, "batch_size": 16}
_SALT = 1_000_000
"""Between the seed of an arm's initial values and that of the other arm's batches."""
_PRIOR = 0.1
"""Precision of the t-test's mixture over mean / sd."""

Draw = Callable[[np.random.Generator, int], np.ndarray]
"""draw(generator, n) -> n differences of two arms of which neither is better."""

LAWS: dict[str, Draw] = {
    "normal": lambda draw, n: draw.normal(size=n),
    "heavy tails": lambda draw, n: draw.standard_t(1.5, size=n),
    "skewed": lambda draw, n: math.log(2) - draw.exponential(size=n),
    "a tight lump below, a wide one above": lambda draw, n: np.where(
        draw.random(n) < 0.5, -1 - 1e-3 * draw.random(n), 10 * draw.random(n)
    ),
    "two lumps": lambda draw, n: draw.choice([-1.0, 1.0], size=n) * (1 + 0.02 * draw.normal(size=n)),
}
"""Of median 0, in units of their own."""


def make_bank(source: str, seeds: int, steps: int) -> dict[str, object]:
    """Two trainings a seed, of equal settings and initial values, whose batches are drawn by different seeds."""
    asked = Request(source=source, steps=steps, set=SIZES, tokenizer="char", threads=1, precision="fp32", watch="off")
    config, corpus, _ = resolve(asked, None)
    rows = []
    for seed in range(1, seeds + 1):
        losses, began = [], time.perf_counter()
        for batches in (seed, seed + _SALT):
            parts = assemble(override(config, {"seed": seed}), corpus)
            outcome = dataclasses.replace(parts, config=override(config, {"seed": batches})).train()
            losses.append(bits_per_byte(parts, outcome.best_loss))
        rows.append({"seed": seed, "losses": losses, "seconds": round(time.perf_counter() - began, 2)})
        print(rows[-1], file=sys.stderr, flush=True)
    return {"steps": steps, "sizes": SIZES, "text": corpus.name, "sha256": corpus.sha256, "rows": rows}


def from_bank(bank: dict) -> Draw:
    """Differences of the bank, each with a random sign: the two arms are the same but for the salt."""
    found = np.array([a - b for a, b in (row["losses"] for row in bank["rows"])])
    return lambda draw, n: draw.choice(found, size=n) * draw.choice([-1.0, 1.0], size=n)


def gate(differences: np.ndarray, gain: float, number: int) -> tuple[str, int]:
    """The decision of try `number`, and the pairs it took."""
    for n in range(6, len(differences) + 1):  # fewer decide nothing
        decision = decide(list(differences[:n]), gain, alpha(number))
        if decision != "undecided":
            return decision, n
    return "undecided", len(differences)


def student(differences: np.ndarray, gain: float, number: int) -> tuple[str, int]:
    """The same by the scale-mixture sequential t-test (Lai 1976; Wang and Ramdas 2024, arXiv 2310.03722)."""
    for n in range(2, len(differences) + 1):
        x = differences[:n]
        if x.mean() < 0 and _evidence_of_t(x) >= 1 / alpha(number):
            return "keep", n
        if x.mean() > -gain and _evidence_of_t(x + gain) >= 40:
            return "discard", n
    return "undecided", len(differences)


def _evidence_of_t(x: np.ndarray) -> float:
    """Against a mean of 0, whatever the sd, for normal differences."""
    n, squares, square = len(x), float((x**2).sum()), float(x.sum()) ** 2
    left = (n + _PRIOR) * squares - square
    return math.sqrt(_PRIOR / (n + _PRIOR)) * ((n + _PRIOR) * squares / left) ** (n / 2) if squares else 1.0


def greedy(differences: np.ndarray, gain: float, number: int) -> tuple[str, int]:
    """Keep what looks better, by one pair."""
    return ("keep" if differences[0] < 0 else "discard"), 1


RULES = {"greedy": greedy, "gate": gate, "t-test": student}


def nights(law: Draw, sd: float, gain: float, tries: int, seed: int, rules: tuple[str, ...] = tuple(RULES)) -> dict:
    """Rule -> what `tries` of that true gain (in sd) came to; try k of a night has the k-th share of the error.

    The smallest useful gain is one sd.
    """
    draw = np.random.default_rng([seed, int(10 * gain)])
    made: dict[str, list[tuple[str, int]]] = {rule: [] for rule in rules}
    for i in range(tries):
        x = law(draw, MAX_SEEDS) - gain * sd
        for rule in rules:
            made[rule].append(RULES[rule](x, sd, i % NIGHT + 1))
    return {rule: _summary(found) for rule, found in made.items()}


def _summary(made: list[tuple[str, int]]) -> dict[str, float]:
    kept = np.array([decision == "keep" for decision, _ in made])
    whole = kept[: len(kept) // NIGHT * NIGHT].reshape(-1, NIGHT)
    return {
        "kept": float(kept.mean()),
        "discarded": float(np.mean([decision == "discard" for decision, _ in made])),
        "kept_in_a_night": float(whole.sum(1).mean()),
        "nights_with_a_keep": float(whole.any(1).mean()),
        "nights": len(whole),
        "seeds": float(np.mean([n for _, n in made])),
    }


def main() -> int:
    """Make a bank, or print what nights came to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=("bank", "nights"))
    parser.add_argument("--source", default="", help="the text; empty is the one inside Python")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=24)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--bank", type=Path)
    parser.add_argument("--tries", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.work == "bank":
        text = json.dumps(make_bank(args.source, args.seeds, args.steps), indent=1)
        args.out.write_text(text + "\n") if args.out else print(text)
        return 0
    laws = {**({"bank": from_bank(json.loads(args.bank.read_text()))} if args.bank else {}), **LAWS}
    worst = 0.0
    for name, law in laws.items():
        sd = float(np.median(np.abs(law(np.random.default_rng(0), 20_000)))) * 1.4826
        for gain in (0.0, 1.0, 2.0, 4.0):
            found = nights(law, sd, gain, args.tries * (1 if gain else 10), args.seed)
            worst = max(worst, found["gate"]["nights_with_a_keep"] if gain == 0 else 0.0)
            print(name, f"gain {gain:g} sd", json.dumps(found), flush=True)
    return int(worst > 0.1)  # of 200 nights; 5 % are promised


if __name__ == "__main__":
    sys.exit(main())
