"""Folders that somebody else made: whole run folders, their telemetry and tokenizers, Hugging Face folders, with values
changed where the formats have them, all hashes made to agree, and read by every command.

    python tests/campaigns/strange_folders.py --inputs 500000 --page docs/benchmarks/strange-folders.md

No command may crash, take more than 10 s, call it a bug of ours, print a control character, or change a file outside
the folder. A page that is there already is gone on with: its inputs count, its rounds are not made again. Input i of
round r follows from (r, i): `--round r --only i` makes it alone and prints what the command said.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import sqlite3
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from attempt import Outcome, attempt, warm
from command import machine
from damage import COMMANDS, make

from qkv.config import dump_toml
from qkv.errors import QkvError
from qkv.folder.run_folder import FINAL_FILES, RunFolder, sha256_of
from qkv.folder.verified import state_digest

ESC = "\x1b]0;x\x07\x1b[31m"
ODD: list[object] = [
    *(None, True, False, 0, -1, 1, 2, 7, 64, 1 << 31, (1 << 32) - 1, 1 << 53, 10**25, -(1 << 63), 0.5, -0.0, 1e308),
    *(float("inf"), float("nan"), "", "a", ESC, "²", "../../outside/file", "/dev/zero", "x" * 5000, "\ud800", "(a+)+$"),
    *("1", "null", "[", [], {}, [[]], [None], {"": None}, ["a", 1], [[[[[[]]]]]], {"a": {"b": {"c": 1}}}),
]
STORED: list[object] = [None, -1, 0, 1, 1 << 40, (1 << 63) - 1, 1e308, float("inf"), "", "a", ESC, "[", "null", "{}",
                        "[1]", b"", b"\xff\x00", b"\0" * 64, "x" * 5000, "L0.W_Q", "'; DROP"]  # fmt: skip
HEADER_BYTES = 8
READERS = sorted(set(COMMANDS) - {"from"})
WALL = 30.0
"""Seconds that an attempt may take: three times `attempt.SECONDS`, for a machine that has other work."""


def places(value: object, at: tuple = ()) -> list[tuple]:
    """The path of every value in JSON or TOML, containers too."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(path for name, inner in items for path in places(inner, (*at, name)))]


def changed(value: object, draws: np.random.Generator) -> object:
    """The same with one value of it replaced, taken away, doubled or renamed."""
    value = json.loads(json.dumps(value))
    paths = [path for path in places(value) if path]
    if not paths:
        return pick(ODD, draws)
    *above, name = paths[int(draws.integers(len(paths)))]
    holder = value
    for step in above:
        holder = holder[step]  # type: ignore[index]
    how = int(draws.integers(6))
    if how == 0:
        del holder[name]  # type: ignore[attr-defined]
    elif how == 1 and isinstance(holder, dict):
        holder[str(pick(["", ESC, "../x", "²", name + "x"], draws))] = holder.pop(name)  # type: ignore[operator]
    elif how == 2 and isinstance(holder, list):
        holder += [holder[name]] * 3
    else:
        holder[name] = pick(ODD, draws)  # type: ignore[index]
    return value


def pick(options: list, draws: np.random.Generator) -> object:
    return options[int(draws.integers(len(options)))]


def config(run: Path, draws: np.random.Generator) -> str:
    table = changed(tomllib.loads((run / "config.toml").read_text()), draws)
    with contextlib.suppress(QkvError, TypeError, ValueError, AttributeError, AssertionError):  # TOML has no null
        (run / "config.toml").write_text(dump_toml(table))  # type: ignore[arg-type]
    return "config.toml"


def manifest(run: Path, draws: np.random.Generator) -> str:
    value = changed(RunFolder(run).read_manifest(), draws)
    if isinstance(value, dict):
        with contextlib.suppress(ValueError, QkvError):
            RunFolder(run).write_manifest(value)
    return "manifest"


def state(run: Path, draws: np.random.Generator) -> str:
    path = pick(sorted(run.glob("checkpoints/*/state.json")), draws)
    value = changed(json.loads(path.read_text()), draws)  # type: ignore[attr-defined]
    if isinstance(value, dict):
        value.pop("sha256", None)
        with contextlib.suppress(ValueError):
            value["sha256"] = state_digest(value)
    path.write_text(json.dumps(value))  # type: ignore[attr-defined]
    (run / "manifest.json").unlink() if draws.random() < 0.5 else None
    return "state"


def tokenizer(run: Path, draws: np.random.Generator) -> str:
    path = run / "tokenizer.json"
    path.write_text(json.dumps(changed(json.loads(path.read_text()), draws)))
    return "tokenizer"


def weights(run: Path, draws: np.random.Generator) -> str:
    name = str(pick(["best.safetensors", "model.safetensors"], draws))
    tensors(run / name, draws)
    return name


def tensors(path: Path, draws: np.random.Generator) -> None:
    """Change the header of a safetensors file, or its numbers."""
    data = path.read_bytes()
    path.unlink()  # it is one file with a checkpoint's
    length = int.from_bytes(data[:HEADER_BYTES], "little")
    header, numbers = data[HEADER_BYTES : HEADER_BYTES + length], bytearray(data[HEADER_BYTES + length :])
    if draws.random() < 0.7:
        header = json.dumps(changed(json.loads(header), draws)).encode()
        length = int(pick([len(header)] * 8 + [0, 1, 1 << 40], draws))  # type: ignore[call-overload]
    else:
        at = 4 * int(draws.integers(len(numbers) // 4))
        numbers[at : at + 4] = np.float32(pick([np.nan, np.inf, 1e38, -1e38, 1e-45], draws)).tobytes()
    path.write_bytes(length.to_bytes(HEADER_BYTES, "little") + header + numbers)


def telemetry(run: Path, draws: np.random.Generator) -> str:
    with contextlib.closing(sqlite3.connect(run / "telemetry.sqlite")) as database:
        tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")]
        for _ in range(int(draws.integers(1, 4))):
            table = pick(tables, draws)
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
            column, value = pick(columns, draws), pick(STORED, draws)
            n = database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            where = f'("{column}") IN (SELECT "{column}" FROM {table} LIMIT 1 OFFSET {int(draws.integers(max(1, n)))})'
            with contextlib.suppress(sqlite3.Error, OverflowError):
                database.execute(f'UPDATE OR REPLACE {table} SET "{column}" = ? WHERE {where}', (value,))
        if draws.random() < 0.1:
            with contextlib.suppress(sqlite3.Error):
                database.execute(str(pick(["CREATE VIEW v AS SELECT 1", "DROP VIEW history", "CREATE TABLE x (y)",
                                           "CREATE TRIGGER t INSERT ON steps BEGIN DELETE FROM facts; END",
                                           "DELETE FROM steps", "PRAGMA user_version = 99"], draws)))  # fmt: skip
        database.commit()
    (run / "manifest.json").unlink() if draws.random() < 0.3 else None
    return "telemetry"


def names(run: Path, draws: np.random.Generator) -> str:
    files = sorted(path for path in run.rglob("*") if path.is_file() and path.name != ".lock")
    path = files[int(draws.integers(len(files)))]
    how = int(draws.integers(6))
    if how == 0:
        (run / "checkpoints" / str(pick(["step-²", "step-1", f"step-{ESC}", "step-99999999999999"], draws))).mkdir()
    elif how == 1:
        path.unlink()
        path.symlink_to(pick(["/dev/zero", "../outside/file", "/", path.name], draws))  # type: ignore[arg-type]
    elif how == 2:
        path.unlink()
        os.mkfifo(path)
    elif how == 3:
        path.unlink()
        path.mkdir()
    elif how == 4:
        path.unlink()
    else:
        path.write_bytes(b"")
    return f"names: {path.name}"


def huggingface(folder: Path, draws: np.random.Generator) -> str:
    name = str(
        pick(["config.json", "config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"], draws)
    )
    if name == "model.safetensors":
        tensors(folder / name, draws)
    else:
        (folder / name).write_text(json.dumps(changed(json.loads((folder / name).read_text()), draws)))
    return f"Hugging Face {name}"


CHANGES = [config, manifest, state, tokenizer, weights, telemetry, telemetry, telemetry, names]


def strange(place: Path, number: tuple[int, int]) -> tuple[str, Outcome]:
    """One input: (what was changed and read, how that ended)."""
    draws = np.random.default_rng(number)
    copy = place / "copy"
    for leftover in ("copy", "out", "new"):
        shutil.rmtree(place / leftover, ignore_errors=True)
    if draws.random() < 0.2:
        shutil.copytree(place / "folder", copy)
        what = huggingface(copy, draws)
        return f"{what}, import", attempt(["import", copy, "--out", place / "new"], seconds=WALL)
    shutil.copytree(place / "whole", copy)
    change = CHANGES[int(draws.integers(len(CHANGES)))]
    what = change(copy, draws)
    if change is not names and (copy / "manifest.json").is_file() and change is not manifest:
        run = RunFolder(copy)
        files = {name: sha256_of(copy / name) for name in FINAL_FILES if (copy / name).is_file()}
        run.write_manifest(run.read_manifest(altered=True) | {"files": files})
    command = READERS[int(draws.integers(len(READERS)))]
    words = COMMANDS[command](copy)
    if draws.random() < 0.15:
        command, words = "resume", ["train", "--out", copy, "--resume", "--no-report"]
    return f"{what}, {command}", attempt(words, seconds=WALL)


def prepare(place: Path) -> None:
    """A run and a Hugging Face folder to be changed, and a file outside that nobody may touch."""
    os.environ["XDG_CACHE_HOME"] = str(place / "cache")
    run = make(place)
    made = attempt(["export", run, "--out", place / "folder"], seconds=120)
    assert made.status == 0, made.said
    (place / "outside").mkdir()
    (place / "outside" / "file").write_text("as it was")


ROW = re.compile(r"^\| (\d+) \| ([\d,]+) \| (\d+) \| (.*) \|$", re.M)


def round_of(place: Path, seed: int, each: int, until: float, say: Callable[[str], None]) -> str:
    """One round; the row of the page."""
    began, failed, n = time.monotonic(), [], 0
    for number in range(each):
        if time.monotonic() > until:
            break
        what, outcome = strange(place, (seed, number))
        n += 1
        fault = outcome.fault
        if (place / "outside" / "file").read_text() != "as it was":
            fault = "it wrote outside the folder"
        if fault:
            failed.append(f"{number} ({what})")
            say(f"round {seed}, input {number}: {what}: {fault[:400]}")
    return f"| {seed} | {n:,} | {time.monotonic() - began:.0f} | {'; '.join(failed)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=500_000)
    parser.add_argument("--each", type=int, default=1000, help="inputs in a round")
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--round", type=int, help="make an input of this round alone")
    parser.add_argument("--only", type=int, default=0)
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    warm()
    place = Path(tempfile.mkdtemp(prefix="qkv-strange-"))
    given = args.page.read_text(encoding="utf-8") if args.page and args.page.exists() else ""
    rows = [match[0] for match in ROW.finditer(given)]
    until, has_failed = time.monotonic() + 60 * args.minutes, False
    try:
        prepare(place)
        if args.round is not None:
            what, outcome = strange(place, (args.round, args.only))
            print(f"{what}: exit status {outcome.status}, {outcome.seconds:.1f} s\n{outcome.said!r}\n{outcome.fault}")
            sys.exit(bool(outcome.fault))
        while time.monotonic() < until:
            before = ROW.findall("\n".join(rows))
            if sum(int(row[1].replace(",", "")) for row in before) >= args.inputs:
                break
            seed = max((int(row[0]) for row in before), default=0) + 1
            rows.append(round_of(place, seed, args.each, until, lambda line: print(line, flush=True)))
            has_failed |= not rows[-1].endswith("|  |")
            total = sum(int(row[1].replace(",", "")) for row in ROW.findall("\n".join(rows)))
            head = f"# Strange folders\n\n`python tests/campaigns/strange_folders.py` on {machine()}; {total:,} inputs."
            head += "\n\n| round | inputs | seconds | failed |\n|---|---|---|---|\n"
            if args.page:
                args.page.write_text(head + "\n".join(rows) + "\n", encoding="utf-8")
            print(rows[-1], flush=True)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    sys.exit(has_failed)


if __name__ == "__main__":
    main()
