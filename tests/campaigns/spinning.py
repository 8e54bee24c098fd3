"""What a training step takes by how long OpenMP's threads spin before they sleep, alone and beside busy processes.

    python tests/campaigns/spinning.py --busy 2 --spins 300000 100000 20000 12000 5000 1000

GNU's OpenMP reads the number (GOMP_SPINCOUNT) once, when torch is imported, so every turn is a process of its own; the
numbers take turns. `--busy` processes multiply matrices on one thread each meanwhile, beside the step's own threads.
"""

import argparse
import os
import statistics
import subprocess
import sys

from command import machine

_STEP = """
import statistics, sys, time, torch
from qkv.benchmarks import step, sides
from qkv.presets import PRESETS
from qkv.tasks import Batch, Causal
shape = step.SHAPES[int(sys.argv[1])]
ids = torch.arange(shape.windows * (shape.n_ctx + 1)).view(shape.windows, -1) * 7 % shape.d_vocab
one = sides.our_step(step.our_model(shape, PRESETS["gpt2"].layout), Causal(), "fp32")
batch = Batch(ids[:, :-1], ids[:, 1:].flatten())
for _ in range(3):
    one(batch)
times, end = [], time.perf_counter() + float(sys.argv[2])
while time.perf_counter() < end or not times:
    times.append(sides.seconds(lambda: one(batch), 1))
print(1e3 * statistics.median(times))
"""
_BUSY = "import torch; torch.set_num_threads(1); a = torch.ones(512, 512)\nwhile True: a @ a"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spins", type=int, nargs="+", default=[300_000, 100_000, 20_000, 12_000, 5_000, 1_000])
    parser.add_argument("--busy", type=int, default=2, help="processes beside it, in the second table")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of steps in a turn")
    parser.add_argument("--shape", type=int, default=0, help="of `qkv bench step`, from 0")
    args = parser.parse_args()
    print(machine())
    for busy in dict.fromkeys((0, args.busy)):
        others = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(busy)]
        try:
            found = {spins: [] for spins in args.spins}
            for _ in range(args.rounds):
                for spins in args.spins:
                    found[spins].append(turn(spins, args.shape, args.seconds))
        finally:
            for process in others:
                process.kill()
        print(f"\nbeside {busy} busy processes, ms a step (median of {args.rounds} turns, range)")
        for spins, values in found.items():
            print(f"{spins:>9,}  {statistics.median(values):8.1f}  {min(values):.1f} to {max(values):.1f}", flush=True)


def turn(spins: int, shape: int, seconds: float) -> float:
    """Milliseconds of a step, the median of a process."""
    words = [sys.executable, "-c", _STEP, str(shape), str(seconds)]
    environment = {**os.environ, "GOMP_SPINCOUNT": str(spins)}
    return float(subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout)


if __name__ == "__main__":
    main()
