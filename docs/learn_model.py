"""Train the model inside the page "What is trained in self-attention?": python docs/learn_model.py [--check]

Writes `src/qkv/views/learn/model.npz`: a causal word model of one layer without norms, at a few steps of its training,
with the text it was trained on. That text is generated here. `--check` trains again and compares the weights.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from qkv.api import train
from qkv.randomness import generator
from qkv.views.learn.model import of_run, shipped
from qkv.views.report.packed import to_json

FILE = Path(__file__).resolve().parents[1] / "src/qkv/views/learn/model.npz"
PRONOUN = {"king": "he", "boy": "he", "queen": "she", "girl": "she", "cat": "it", "dog": "it", "owl": "it"}
SEEN = (*PRONOUN, "sea", "moon", "door")
SETTINGS = {
    "norm": "none", "start": "xavier", "d_model": 32, "n_layers": 1, "n_heads": 4, "n_ctx": 32, "optimizer.lr": 0.01,
}  # fmt: skip
STEPS = 1000
SAME, LOSS = 1e-3, 1e-3
"""Allowed on another processor: the largest difference of weights until step 512, relative to the largest weight of a
matrix, and that of the last validation loss, in nats. Rounding differs between processors and grows with each update:
to 1e-7, 1e-6 and 1e-4 of the largest weight after 8, 64 and 512 updates, 0.03 after 1,000."""


def text(n: int = 3000) -> str:
    """n sentences whose pronoun agrees with the subject, however many words lie between."""
    draws = generator("docs", "learn", "text")

    def one(words: tuple[str, ...]) -> str:
        return words[draws.integers(len(words))]

    def sentence() -> str:
        who = one(tuple(PRONOUN))
        sees = draws.random() < 0.6
        does = (
            f"{one(('sees', 'likes', 'finds'))} the {one(SEEN)}"
            if sees
            else f"sat on the {one(('mat', 'bed', 'hill'))}"
        )
        acts, when = one(("sings", "sleeps", "waits")), one(("again", "today", "now"))
        return f"the {who} {does} and {PRONOUN[who]} {acts} {when}.\n"

    return "".join(sentence() for _ in range(n))


def trained() -> dict[str, np.ndarray]:
    """The arrays of the file: weights by address, [step, rows, columns], and all else as JSON in `facts`."""
    with tempfile.TemporaryDirectory() as place:
        source, run = Path(place) / "sentences.txt", Path(place) / "model"
        source.write_text(text(), encoding="utf-8")
        train(
            source, out=run, preset="textbook", tokenizer="word", steps=STEPS, seed=1, threads=1, precision="fp32",
            watch="off", report=False, set=SETTINGS,
        )  # fmt: skip
        learned, weights = of_run(run, text())
    facts = {k: v for k, v in to_json(dataclasses.replace(learned, weights=None)).items() if k != "weights"}
    return {**weights, "facts": np.array(json.dumps(facts))}


def difference(arrays: dict[str, np.ndarray]) -> float:
    """The largest difference from the file's weights until step 512, relative to the largest weight of each matrix.

    Infinite where the facts, the addresses or the last losses differ.
    """
    kept = shipped()
    facts = json.loads(str(arrays["facts"]))
    exact = all(to_json(getattr(kept, name)) == facts[name] for name in ("tokens", "steps", "text"))
    exact = exact and kept.settings.items() <= facts["settings"].items()  # a later version has more settings
    exact = exact and abs(kept.val_loss - facts["val_loss"]) <= LOSS
    with np.load(FILE, allow_pickle=False) as file:
        if not exact or set(file.files) != set(arrays):
            return float("inf")
        early = [(arrays[a][:-1], file[a][:-1]) for a in file.files if a != "facts"]
        return max(float(np.abs(ours - theirs).max() / np.abs(theirs).max()) for ours, theirs in early)


def main() -> int:
    parser = argparse.ArgumentParser(description="train the model inside the learn page")
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    arrays = trained()
    if not parser.parse_args().check:
        np.savez_compressed(FILE, allow_pickle=False, **arrays)
        return 0
    found = difference(arrays)
    where = f"{FILE.name} until step {shipped().steps[-2]}"
    print(f"largest relative difference from {where}: {found:.1e}; at most {SAME:g} is allowed")
    return int(found > SAME)


if __name__ == "__main__":
    sys.exit(main())
