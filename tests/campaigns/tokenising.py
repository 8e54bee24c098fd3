"""A large synthetic text cut into tokens and trained on: wall time, resident memory of all processes, kills in between.

    python tests/campaigns/tokenising.py --gigabytes 10 --kills 2

Writes the text and the cache below --place (a temporary folder, removed afterwards; it needs 1.7 times the text). A
round is `qkv train` of a few steps; with --kills the first rounds are killed with SIGKILL while they write tokens, and
the last one goes on from there. Linux only.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from command import machine

LINES = 20_000
WORDS = 50_000


def write(path: Path, n_bytes: int) -> None:
    """Words by Zipf's law, in lines of a dozen; blocks differ."""
    draws = np.random.default_rng(1)
    lengths = draws.integers(2, 11, WORDS)
    letters = draws.integers(97, 123, lengths.sum(), dtype=np.uint8)
    starts, behind = (np.cumsum(lengths) - lengths).astype(np.int32), (lengths + 1).astype(np.int32)
    up_to = np.cumsum(np.arange(1, WORDS + 1) ** -1.3)
    word = np.searchsorted(up_to / up_to[-1], (np.arange(1 << 20) + 0.5) / (1 << 20)).astype(np.int32)
    with open(path, "wb") as file:
        while file.tell() < n_bytes:
            picked = word[draws.integers(len(word), size=LINES * 12, dtype=np.int32)]
            ends = np.cumsum(behind[picked], dtype=np.int32)
            letter = np.arange(ends[-1], dtype=np.int32) + np.repeat(
                starts[picked] - ends + behind[picked], behind[picked]
            )
            text = letters.take(letter, mode="clip")
            text[ends - 1] = 32
            text[ends[11::12] - 1] = 10
            file.write(text.tobytes())


def family(parent: int) -> list[int]:
    """A process and all that came from it."""
    found, last = [parent], []
    parents = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal():
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    while found != last:
        last, found = found, [parent, *(one for one, above in parents.items() if above in found)]
    return found


def resident(pids: list[int]) -> int:
    """Their memory, but for pages of files (ids that are mapped, libraries), in bytes."""
    total = 0
    for pid in pids:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            total += 1024 * int(status.partition("RssAnon:")[2].split()[0])
        except (OSError, IndexError):
            continue
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--kind", default="bpe")
    parser.add_argument("--vocab", default="8192")
    parser.add_argument("--place", type=Path)
    args = parser.parse_args()
    print(machine())
    place = Path(tempfile.mkdtemp(prefix="qkv-large-", dir=args.place))
    try:
        began = time.monotonic()
        write(place / "text.txt", int(args.gigabytes * 1e9))
        size = (place / "text.txt").stat().st_size
        print(f"{size / 1e9:.2f} GB written in {time.monotonic() - began:.0f} s")
        sizes = "d_model=64,n_layers=2,n_heads=2,n_ctx=128,batch_size=8"
        words = [sys.executable, "-m", "qkv", "train", str(place / "text.txt"), "--tokenizer", args.kind, "--no-report"]
        words += ["--vocab", args.vocab, "--steps", "20", "--watch", "off", "--set", sizes]
        for round_ in range(args.kills + 1):
            began, most, cache = time.monotonic(), 0, place / ".cache" / "qkv"
            environment = {**os.environ, "HOME": str(place), "XDG_CACHE_HOME": ""}  # a cache of its own
            process = subprocess.Popen([*words, "--out", str(place / f"run-{round_}")], env=environment)
            share = (round_ + 1) / (args.kills + 1)
            while process.poll() is None:
                most = max(most, resident(family(process.pid)))
                written = sum(path.stat().st_size for path in cache.glob("tokens/.part-*/train.ids"))
                if round_ < args.kills and written > share * 0.4 * size / 2:
                    process.send_signal(signal.SIGKILL)
                time.sleep(0.1)
            seconds = time.monotonic() - began
            ended = "killed" if process.returncode < 0 else f"status {process.returncode}"
            print(
                f"round {round_ + 1}: {ended} after {seconds:.0f} s, at most {most / 1e6:,.0f} MB resident", flush=True
            )
            if process.returncode > 0:
                sys.exit(process.returncode)
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
