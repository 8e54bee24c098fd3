"""How soon the help is there: whole-process time of `qkv --help`, the median of several runs.

python benchmarks/start.py --runs 7
"""

import argparse
import subprocess
import sys
import time

from command import machine, spread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    args = parser.parse_args()
    print(machine())
    seconds = []
    for _ in range(args.runs):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "qkv", "--help"], stdout=subprocess.DEVNULL, check=True)
        seconds.append(time.perf_counter() - began)
    print(f"qkv --help: {spread(seconds)} s")


if __name__ == "__main__":
    main()
