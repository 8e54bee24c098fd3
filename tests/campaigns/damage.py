"""Damage every file of a run, and read it with every command: nothing may be used, or left unsaid.

    python tests/campaigns/damage.py --tries 2000 --page docs/benchmarks/damage.md

A file has one bit flipped, its end cut off, or a page of 4,096 bytes (a third of a small file) set to zero. A command
must then refuse (exit status 2, one sentence), or say what is damaged, or give what it gives of the whole run, to the
byte, for it did not read that file. `qkv verify` must call the run damaged every time. Every try follows from --seed
and its number; exit status 1 where one was silent.
"""

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from attempt import Outcome, attempt, warm
from command import machine

SIZES = "d_model=16,n_layers=1,n_heads=2,n_ctx=16,batch_size=8"
PAGE = 4096
TOLD = re.compile(
    r"damaged|altered|not whole|cannot be read|cannot be used|not valid|is no |not the configuration", re.I
)

COMMANDS: dict[str, Callable[[Path], list[str | Path]]] = {
    "predict": lambda r: ["predict", r, "the day", "--tokens", "5", "--temperature", "0", "--json"],
    "last": lambda r: ["predict", r, "the day", "--tokens", "5", "--temperature", "0", "--weights", "last", "--json"],
    "embed": lambda r: ["embed", r, "the day", "--json"],
    "eval": lambda r: ["eval", r, "--json"],
    "show": lambda r: ["show", r],
    "matrix": lambda r: ["show", r, "L0.W_Q", "--at", "8"],
    "compare": lambda r: ["compare", r, r.parent / "whole"],
    "report": lambda r: ["report", r, "--out", r / "out.html"],
    "export": lambda r: ["export", r, "--out", r.parent / "out"],
    "from": lambda r: ["train", r.parent / "text.txt", "--from", r, "--steps", "2", "--out", r.parent / "new",
                       "--no-report", "--threads", "1"],
    "verify": lambda r: ["verify", r, "--updates", "0"],
}  # fmt: skip


def flipped(content: bytes, draws: np.random.Generator) -> bytes:
    data = bytearray(content)
    data[int(draws.integers(len(data)))] ^= 1 << int(draws.integers(8))
    return bytes(data)


def cut_off(content: bytes, draws: np.random.Generator) -> bytes:
    return content[: int(draws.integers(len(content)))]


def zeroed(content: bytes, draws: np.random.Generator) -> bytes:
    n = min(PAGE, max(1, len(content) // 3))
    at = int(draws.integers(max(1, len(content) // n))) * n
    return content[:at] + bytes(len(content[at : at + n])) + content[at + n :]


DAMAGES = {"one bit": flipped, "the end cut off": cut_off, "a page of zeros": zeroed}


def make(place: Path) -> Path:
    """A small finished run with a report, at `place / whole`."""
    draws = np.random.default_rng(0)
    words = [a + b + c for a in "bdfk" for b in "aeiou" for c in "lmn"]
    text = "\n".join(" ".join(draws.choice(words, size=8)) + "." for _ in range(400)) + "\nthe day\n"
    (place / "text.txt").write_text(text)
    given = ["train", place / "text.txt", "--tokenizer", "char", "--steps", "20", "--set", SIZES, "--threads", "1"]
    made = attempt([*given, "--out", place / "whole"], seconds=300)
    assert made.status == 0, made.said
    return place / "whole"


def read(command: str, run: Path) -> tuple[Outcome, str]:
    """How a command ends on a run, and what it gives: what it says, or the file or weights that it writes."""
    for leftover in (run.parent / "out", run.parent / "new"):
        shutil.rmtree(leftover, ignore_errors=True)
    found = attempt(COMMANDS[command](run), seconds=60)
    written = {
        "report": [run / "out.html"],
        "export": sorted((run.parent / "out").glob("*")),
        "from": [run.parent / "new" / "model.safetensors"],
    }
    if command not in written:
        return found, found.said
    return found, "".join(str(file.read_bytes()) for file in written[command] if file.is_file())


def short(command: str, found: Outcome, given: str, whole: tuple[Outcome, str]) -> str:
    """What falls short of what must be; "" where nothing does."""
    if found.fault:
        return found.fault
    if command == "verify":
        return "" if found.status == 1 and "is damaged" in found.said or found.status == 2 else "verify calls it whole"
    if found.is_refused or len(TOLD.findall(found.said)) > len(TOLD.findall(whole[0].said)) or given == whole[1]:
        return ""
    return f"it ended with {found.status} and said nothing: {found.said[-200:]!r}"


def tries(place: Path, n: int, seed: int, minutes: float, say: Callable[[str], None]) -> tuple[Counter, list[str]]:
    """(how many of each command, what was silent) of `n` tries."""
    run = make(place)
    files = sorted(p.relative_to(run) for p in run.rglob("*") if p.is_file() and p.name != ".lock")
    copy = place / "copy"
    shutil.copytree(run, copy)
    whole = {command: read(command, copy) for command in COMMANDS}
    for command, (found, given) in whole.items():
        assert found.status == 0 and read(command, copy)[1] == given, f"{command} of the whole run: {found}"
    counted: Counter[str] = Counter()
    wrong: list[str] = []
    until = time.monotonic() + 60 * minutes
    for number in range(n):
        if time.monotonic() > until:
            break
        draws = np.random.default_rng([seed, number])
        file, damage = files[number % len(files)], sorted(DAMAGES)[int(draws.integers(len(DAMAGES)))]
        command = sorted(COMMANDS)[int(draws.integers(len(COMMANDS)))]
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run, copy)
        before = (copy / file).read_bytes()
        after = DAMAGES[damage](before, draws)
        if after == before:
            continue
        (copy / file).write_bytes(after)
        counted[command] += 1
        if why := short(command, *read(command, copy), whole[command]):
            wrong.append(f"{number}: {damage} of {file}, {command}: {why}")
            say(wrong[-1])
    return counted, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--page", type=Path, help="write the result there as well")
    args = parser.parse_args()
    warm()
    place, began = Path(tempfile.mkdtemp(prefix="qkv-damage-")), time.monotonic()
    os.environ["XDG_CACHE_HOME"] = str(place / "cache")
    try:
        counted, wrong = tries(place, args.tries, args.seed, args.minutes, lambda line: print(line, flush=True))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    lines = ["# Damaged files", "", f"`python tests/campaigns/damage.py --seed {args.seed}` on {machine()},"]
    lines[-1] += f" {time.monotonic() - began:.0f} s."
    lines += ["", f"{sum(counted.values()):,} readings of damaged runs; {len(wrong)} were silent or crashed.", ""]
    lines += ["| command | readings |", "|---|---|", *(f"| {name} | {n:,} |" for name, n in sorted(counted.items()))]
    text = "\n".join([*lines, "", *(f"- {line}" for line in wrong)]).rstrip() + "\n"
    print(text)
    if args.page:
        args.page.write_text(text, encoding="utf-8")
    sys.exit(bool(wrong) or not counted)


if __name__ == "__main__":
    main()
