"""A real night: 100 tries over ten settings, kept by the gate or by the lowest loss so far, and judged afterwards.

    python tests/campaigns/night.py my.txt --out night       # some 40 minutes on one core; the same command continues

Both nights begin at the same BEST and draw their proposals from one list of settings: the gate asks `qkv trial`, the
greedy night trains NEW once, on a seed of its own, and keeps it if its loss is the lowest so far. Then every keep is
trained again beside the BEST that it replaced, on 20 seeds that no try used, and so is the last BEST beside the first.
A keep is true where the 95% interval (Student's t) of these differences lies below 0, false where it lies above, and
open in between. Results lie in OUT: ledger, steps of both nights, `night.json`.
"""

import argparse
import dataclasses
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import scipy.stats

from qkv import api
from qkv.config import dump_toml, override, to_dict
from qkv.recipe import Request, RunConfig, assemble, resolve
from qkv.recipe.training import bits_per_byte

SIZES = {"d_model": 32, "n_layers": 1, "n_heads": 2, "n_ctx": 32, "batch_size": 16}
STEPS, MAX_SEEDS, GAIN, FRESH = 100, 20, 0.01, 20
_FACTORS = (0.35, 0.5, 0.7, 0.85, 1.2, 1.4, 2.0, 2.8)
PROPOSALS: Mapping[str, Sequence[object]] = {
    "training.optimizer.lr": _FACTORS,
    "training.optimizer.muon_lr": _FACTORS,
    "training.optimizer.weight_decay": (0.0, 0.003, 0.01, 0.03, 0.1),
    "training.optimizer.momentum": (0.75, 0.8, 0.85, 0.9, 0.95),
    "training.optimizer.beta2": (0.9, 0.95, 0.98, 0.99, 0.999),
    "training.schedule.decay_share": (0.2, 0.35, 0.5, 0.7, 0.85, 1.0),
    "training.schedule.warmup_steps": (0, 5, 10, 20),
    "model.sizes.d_mlp": (48, 64, 80, 96, 128),
    "model.layout.qk_norm": (True, False),
    "model.layout.norm_place": ("pre", "post"),
}
"""Ten settings, which are changed one or two at a time; a factor multiplies the rate of BEST."""


def propose(best: RunConfig, draw: random.Random, tried: set[tuple[object, ...]]) -> tuple[str, RunConfig]:
    """One setting of BEST changed, or two, to what has not been `tried` beside it, and what was changed."""
    while True:
        changes = {}
        for path in sorted(draw.sample(list(PROPOSALS), draw.choice((1, 1, 2)))):
            value, now = draw.choice(PROPOSALS[path]), _at(best, path)
            changes[path] = float(f"{now * value:.3g}") if PROPOSALS[path] is _FACTORS else value
        key = tuple(changes.items())
        if key not in tried and all(value != _at(best, path) for path, value in changes.items()):
            tried.add(key)
            what = (f"{path.rpartition('.')[2]} {_at(best, path)} -> {value}" for path, value in changes.items())
            return ", ".join(what), override(best, changes)


def _at(config: RunConfig, path: str) -> object:
    for name in path.split("."):
        config = getattr(config, name)
    return config


class Trainer:
    """Trains a configuration on a seed, and remembers the loss (bits per byte) in a file."""

    def __init__(self, corpus: object, path: Path) -> None:
        self.corpus, self.path = corpus, path
        self.known = {} if not path.exists() else dict(map(json.loads, path.read_text().splitlines()))

    def loss(self, config: RunConfig, seed: int) -> float:
        """The lowest on validation text; uniform guessing where it diverges."""
        key = json.dumps([dataclasses.asdict(config), seed], sort_keys=True, default=str)
        if key not in self.known:
            parts = assemble(override(config, {"seed": seed}), self.corpus)
            outcome = parts.train(scores_start=parts.goes_on)
            diverged = outcome.stopped_because == "diverged" or not math.isfinite(outcome.best_loss)
            nats = math.log(config.model.sizes.d_vocab) if diverged else outcome.best_loss
            self.known[key] = bits_per_byte(parts, nats)
            with open(self.path, "a") as file:
                file.write(json.dumps([key, self.known[key]]) + "\n")
        return self.known[key]


def by_gate(first: RunConfig, tries: int, out: Path) -> list[dict]:
    """The keeps and all else of a night in which `qkv trial` decides; resumes from its ledger."""
    best, draw, made, tried = first, random.Random(1), [], set[tuple[object, ...]]()
    folder = out / "gate"
    folder.mkdir(exist_ok=True)
    for k in range(1, tries + 1):
        change, new = propose(best, draw, tried)
        (folder / "best.toml").write_text(dump_toml(to_dict(best)))
        (folder / "new.toml").write_text(dump_toml(to_dict(new)))
        began = time.perf_counter()
        found = api.trial(folder / "new.toml", folder / "best.toml", max_seeds=MAX_SEEDS, gain=GAIN)
        row = {name: found[name] for name in ("decision", "effect", "low", "high", "seeds", "seconds")}
        made.append({"try": k, "change": change, **row, "new": new, "best": best})
        print(k, change, row, round(time.perf_counter() - began, 1), file=sys.stderr, flush=True)
        if found["decision"] == "keep":
            best, tried = new, set()
    return made


def by_lowest_loss(first: RunConfig, tries: int, trainer: Trainer) -> list[dict]:
    """The same where NEW is trained once and kept if no loss was lower so far."""
    best, draw, made, tried = first, random.Random(1), [], set[tuple[object, ...]]()
    lowest = trainer.loss(first, 500_000)
    for k in range(1, tries + 1):
        change, new = propose(best, draw, tried)
        loss = trainer.loss(new, 500_000 + k)
        kept = loss < lowest
        decision = "keep" if kept else "discard"
        row = {"try": k, "change": change, "decision": decision, "effect": loss - lowest, "seeds": 1}
        made.append({**row, "new": new, "best": best})
        if kept:
            best, lowest, tried = new, loss, set()
    return made


def judged(new: RunConfig, best: RunConfig, trainer: Trainer) -> dict:
    """NEW against BEST on seeds that no try used."""
    seeds = range(900_001, 900_001 + FRESH)
    x = [trainer.loss(new, seed) - trainer.loss(best, seed) for seed in seeds]
    mean = statistics.fmean(x)
    half = float(scipy.stats.t.ppf(0.975, FRESH - 1)) * statistics.stdev(x) / math.sqrt(FRESH)
    verdict = "true" if mean + half < 0 else "false" if mean - half > 0 else "open"
    return {"effect": mean, "low": mean - half, "high": mean + half, "lower_on": sum(d < 0 for d in x), "is": verdict}


def summary(made: list[dict], first: RunConfig, trainer: Trainer) -> dict:
    """Every keep judged, the share that is true with its exact 95% interval, and what the night came to."""
    rows = []
    for row in made:
        told = {name: value for name, value in row.items() if name not in ("new", "best")}
        rows.append(told | ({"fresh": judged(row["new"], row["best"], trainer)} if row["decision"] == "keep" else {}))
    keeps = [row for row in rows if row["decision"] == "keep"]
    true = sum(row["fresh"]["is"] == "true" for row in keeps)
    share = scipy.stats.binomtest(true, len(keeps)).proportion_ci() if keeps else (0.0, 1.0)
    last = next((row["new"] for row in reversed(made) if row["decision"] == "keep"), first)
    return {
        "tries": len(rows),
        "keeps": len(keeps),
        "keeps_by_verdict": {v: sum(row["fresh"]["is"] == v for row in keeps) for v in ("true", "open", "false")},
        "share_true": [true / len(keeps) if keeps else None, *share],
        "undecided": sum(row["decision"] == "undecided" for row in rows),
        "trainings": sum(row["seeds"] * (2 if "seconds" in row else 1) for row in rows),
        "claimed": sum(row["effect"] for row in keeps),
        "last_beside_first": judged(last, first, trainer) if keeps else None,
        "rows": rows,
    }


def main() -> int:
    """Spend both nights and write what they came to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="the text")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tries", type=int, default=100)
    args = parser.parse_args()
    args.out.mkdir(exist_ok=True)
    asked = Request(
        source=args.source, steps=STEPS, set=SIZES, tokenizer="char", threads=1, precision="fp32", watch="off"
    )
    first, corpus, _ = resolve(asked, None)
    trainer = Trainer(corpus, args.out / "trainings.jsonl")
    made = {
        "greedy": by_lowest_loss(first, args.tries, trainer),
        "gate": by_gate(first, args.tries, args.out),
    }
    found = {name: summary(rows, first, trainer) for name, rows in made.items()}
    text = {"text": corpus.name, "sha256": corpus.sha256, "steps": STEPS, "sizes": SIZES, "gain": GAIN, **found}
    (args.out / "night.json").write_text(json.dumps(text, indent=1) + "\n")
    for name, night in found.items():
        print(name, {key: value for key, value in night.items() if key != "rows"})
    return 0


if __name__ == "__main__":
    sys.exit(main())
