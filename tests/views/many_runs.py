"""Many run folders from a few real ones, for tests and measurements: copies with other seeds, rates and losses, each
whole and sealed.

    python tests/views/many_runs.py FOLDER N      trains two tiny runs and writes N folders
"""

import contextlib
import re
import shutil
import sqlite3
import sys
from pathlib import Path

import qkv
from qkv.folder.run_folder import RunFolder, sha256_of

SIZES = {"d_model": 16, "n_layers": 1, "n_heads": 2, "n_ctx": 16, "batch_size": 4}
RATES = (0.001, 0.003, 0.01, 0.03)


def train_one(place, *, seed=1, steps=40, **how):
    """A real run on a small text, in about a second."""
    text = place.parent / "a-text.txt"
    if not text.exists():
        text.write_text("the cat sat on the mat and the dog sat on the log. " * 60)
    given = {
        "tokenizer": "char",
        "set": SIZES,
        "report": False,
        "threads": 1,
        "watch": "full",
        "precision": "fp32",
    } | how
    return qkv.train(text, out=place, seed=seed, steps=steps, **given)


def copy_run(source, place, *, seed, rate, factor=1.0):
    """A copy with this seed and learning rate in its settings, and losses by a factor."""
    shutil.copytree(source, place)
    config = place / "config.toml"
    text = re.sub(r"^seed = .*$", f"seed = {seed}", config.read_text(), count=1, flags=re.MULTILINE)
    config.write_text(re.sub(r"^lr = .*$", f"lr = {rate}", text, count=1, flags=re.MULTILINE))
    with contextlib.closing(sqlite3.connect(place / "telemetry.sqlite")) as connection, connection:
        for table in ("steps", "evaluations"):
            connection.execute(f"UPDATE {table} SET loss = loss * ?", (factor,))
    folder = RunFolder(place)
    manifest = folder.read_manifest()
    manifest["summary"]["val_loss"] *= factor
    files = {name: sha256_of(place / name) for name in manifest["files"]}
    folder.write_manifest({k: v for k, v in manifest.items() if k != "sha256"} | {"files": files})


def many(place, n, sources):
    """`n` copies: 5 seeds of each rate, and so on; losses differ by rate, and a little by seed."""
    for i in range(n):
        rate, seed = RATES[i // 5 % len(RATES)], 1 + i % 5 + 5 * (i // 20)
        factor = 1 + 0.1 * RATES.index(rate) + 0.004 * ((7 * seed) % 11 - 5)
        copy_run(sources[i % len(sources)], place / f"run-{i:04d}", seed=seed, rate=rate, factor=factor)


if __name__ == "__main__":
    target, count = Path(sys.argv[1]), int(sys.argv[2])
    made = target.parent / f"{target.name}-sources"
    made.mkdir(parents=True)
    for first in (1, 2):
        train_one(made / str(first), seed=first, steps=400)
    target.mkdir()
    many(target, count, [made / "1", made / "2"])
