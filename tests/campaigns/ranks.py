"""Training speed of several processes with one thread each against one process with as many threads, in turns.

    python tests/campaigns/ranks.py TEXT --nproc 2 --pairs 3

Prints tokens per second of the training loop, and the median ratio of neighbours: above 1, processes are faster.
"""

import argparse
import statistics
from pathlib import Path

from command import fresh, machine, qkv, spread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--sizes", default="d_model=128,n_layers=4,n_heads=4,n_ctx=128,batch_size=32")
    args = parser.parse_args()
    print(machine())
    place, n = fresh(), str(args.nproc)
    words = ["train", str(args.text), "--tokenizer", "char", "--steps", str(args.steps), "--no-report"]
    words += ["--watch", "off", "--set", args.sizes]
    sides = {"threads": ["--threads", n], "processes": ["--threads", "1", "--nproc", n]}
    found: dict[str, list[float]] = {name: [] for name in sides}
    for pair in range(args.pairs):
        for name, how in sides.items() if pair % 2 == 0 else reversed(sides.items()):
            _, made = qkv(*words, *how, "--out", str(place / f"{name}-{pair}"))
            found[name].append(made["tokens_per_second"])
    for name, speeds in found.items():
        print(f"{n} {name}: {spread(speeds)} tokens/s")
    ratios = [many / one for many, one in zip(found["processes"], found["threads"], strict=True)]
    print(f"processes / threads: {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
