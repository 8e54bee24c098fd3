"""A million mangled inputs for our parsers, in rounds that go on where the last ended.

    python tests/campaigns/fuzz.py --inputs 1000000 --page docs/benchmarks/2026-11-22-fuzz.md

Runs tests/test_fuzz.py again and again, each round with a seed of its own and so many inputs for each parser (a tenth
for `verify`), and writes a row of the page after every round. A page that is there already is gone on with: its inputs
count, its seeds are not used again. Counted are inputs that were drawn and read to the end (hypothesis' `passing`);
what it drew and threw away is not. A round that fails is written down with what failed, and not counted. Exit status 1
where one failed. About 2.5 ms of one core an input (TMPDIR=/dev/shm spares the disk); `--minutes` ends after the round
in which they are over.
"""

import argparse
import datetime
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from command import machine

ROOT = Path(__file__).parents[2]
HEAD = """# Fuzzing of every parser

`python tests/campaigns/fuzz.py` on {where}. Of each round: its seed (`--hypothesis-seed`), the inputs for each
parser (`QKV_FUZZ`), the inputs that were read in all, the first digits of the sha256 of `src/qkv`, and what failed.

| seed | inputs for each | inputs | seconds | sources | failed |
|---|---|---|---|---|---|
"""
ROW = re.compile(r"^\| (\d+) \| ([\d,]+) \| ([\d,]+) \| (\d+) \| (\w+) \| (.*) \|$", re.M)
PASSING = re.compile(r"- ([\d,]+) passing(?: examples)?, 0 failing")


def sources() -> str:
    """The first digits of a hash over the package's sources."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "src" / "qkv").rglob("*.py")):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:10]


def counted(output: str) -> int:
    """Inputs that were read, by hypothesis' own statistics."""
    return sum(int(found.replace(",", "")) for found in PASSING.findall(output))


def round_of(seed: int, each: int) -> tuple[str, str]:
    """One round: (the row of the page, what pytest said)."""
    words = [sys.executable, "-m", "pytest", "tests/test_fuzz.py", "-q", "-p", "no:cacheprovider"]
    with tempfile.TemporaryDirectory(prefix="qkv-fuzz-") as place:
        words += [f"--basetemp={place}/run", "--hypothesis-show-statistics", f"--hypothesis-seed={seed}"]
        began = time.monotonic()
        environment = os.environ | {"QKV_FUZZ": str(each)}
        done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    failed = sorted(set(re.findall(r"^FAILED tests/test_fuzz\.py::(\w+)", done.stdout, re.M)))
    if done.returncode and not failed:
        sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
    inputs = 0 if failed else counted(done.stdout)
    row = f"| {seed} | {each:,} | {inputs:,} | {time.monotonic() - began:.0f} | {sources()} | {', '.join(failed)} |"
    return row, done.stdout


def written(rows: list[str]) -> str:
    """The page."""
    total = sum(int(match[2].replace(",", "")) for match in ROW.findall("\n".join(rows)))
    seeds, day = len(rows), datetime.date.today().isoformat()
    return HEAD.format(where=machine()) + "\n".join(rows) + f"\n\n{total:,} inputs in {seeds} rounds, {day}.\n"


def main() -> None:
    """Run rounds until there are enough."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--each", type=int, default=5000, help="inputs for each parser in a round")
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--page", type=Path, required=True)
    args = parser.parse_args()
    given = args.page.read_text(encoding="utf-8") if args.page.exists() else ""
    rows = [match[0] for match in ROW.finditer(given)]
    until, failed = time.monotonic() + 60 * args.minutes, False
    while time.monotonic() < until:
        before = ROW.findall("\n".join(rows))
        if sum(int(row[2].replace(",", "")) for row in before) >= args.inputs:
            break
        row, said = round_of(max((int(row[0]) for row in before), default=0) + 1, args.each)
        rows.append(row)
        args.page.write_text(written(rows), encoding="utf-8")
        print(row, flush=True)
        if not row.endswith("|  |"):
            failed = True
            print(said[-6000:], file=sys.stderr)
    print(args.page.read_text(encoding="utf-8").splitlines()[-1] if rows else "nothing was run")
    sys.exit(failed)


if __name__ == "__main__":
    main()
