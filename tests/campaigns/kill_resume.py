"""kill -9 at random moments inside training, resume, compare bytes with the undisturbed run.

    python tests/campaigns/kill_resume.py tinyshakespeare/input.txt --kills 20 --steps 1500

Prints how many ended byte-identical (weights, best weights, step-valued telemetry) and how many were resumed from a
step above 0.
"""

import argparse
import hashlib
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from command import fresh, machine, qkv

STEPPED = ("steps", "evaluations", "measurements", "recorded", "vectors", "samples", "events", "facts")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--tokenizer", default="char")
    args = parser.parse_args()
    print(machine())
    place = fresh()
    words = ["train", str(args.text), "--tokenizer", args.tokenizer, "--steps", str(args.steps), "--no-report"]
    words += ["--seed", str(args.seed)]
    whole, _ = qkv(*words, "--out", str(place / "whole"))
    wanted = fingerprint(place / "whole")
    rng, same, resumed = random.Random(args.seed), 0, 0
    for kill in range(args.kills):
        run = place / "killed"
        shutil.rmtree(run, ignore_errors=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "qkv", *words, "--out", str(run)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        moment = whole * rng.uniform(0.2, 0.9)
        time.sleep(moment)
        running = process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        _, result = qkv("train", "--out", str(run), "--resume", "--no-report")
        step, equal = result["resumed_from_step"] or 0, fingerprint(run) == wanted
        same, resumed = same + equal, resumed + (step > 0)
        print(
            f"kill {kill + 1} at {moment:.1f} s{'' if running else ' (after its end)'}: from step {step}, same: {equal}"
        )
    print(f"{same} of {args.kills} byte-identical, {resumed} resumed from a step above 0")
    sys.exit(same != args.kills)


def fingerprint(run: Path, weights: Sequence[str] = ("model.safetensors", "best.safetensors")) -> str:
    """One hash of the weights, the best weights and every step-valued row of the telemetry."""
    digest = hashlib.sha256()
    for name in weights:
        digest.update((run / name).read_bytes())
    with sqlite3.connect(f"file:{run / 'telemetry.sqlite'}?mode=ro", uri=True) as database:
        for table in STEPPED:
            for row in database.execute(f"SELECT * FROM {table} ORDER BY 1, 2, 3"):
                digest.update(repr(row).encode())
    return digest.hexdigest()


if __name__ == "__main__":
    main()
