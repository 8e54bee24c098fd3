"""Cut the power at every recorded write of a command, do it again, and compare the end with the undisturbed one.

    python tests/campaigns/power_cuts.py --works train,import,export --page docs/benchmarks/power-cuts.md
    python tests/campaigns/power_cuts.py --works train --most 40

A library that is preloaded (recorder.c) writes down every change to files while the command runs once: each write, its
place and its bytes, each rename, each sync. From the record the disk is built again as a power cut after every single
change may leave it: with all that was written; with all names but only the contents that were synced; with names and
contents only as far as they were synced; and with a random half of the unsynced sectors. Equal disks are tried once.
On each, `qkv verify` must not call a training damaged, the command is given again (`--resume` where a run is there),
and what it leaves in the end must be the undisturbed one, byte for byte.

Exit status 1 if one cut was not survived. Linux, with a C compiler.
"""

import argparse
import ctypes
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from attempt import attempt, in_child, warm
from campaign import Work, works
from command import machine

HERE = Path(__file__).parent
HEAD = np.dtype([("kind", "S1"), ("ino", "<u8"), ("at", "<u8"), ("size", "<u8"), ("a", "<u4"), ("b", "<u4")])
MODES = ("all", "names", "synced", "torn")
SECTOR = 512
SECONDS = 120.0
STEPS = 12
"""Of a training: every change that it makes is a cut."""


@dataclass(frozen=True)
class Change:
    """One change to files."""

    kind: str
    ino: int
    at: int
    a: str
    b: str
    data: bytes


def changes(log: bytes) -> Iterator[Change]:
    """What was recorded, in order."""
    place = 0
    while place < len(log):
        head = np.frombuffer(log, HEAD, 1, place)[0]
        place += HEAD.itemsize
        a, b, size = int(head["a"]), int(head["b"]), int(head["size"])
        names = log[place : place + a].decode(), log[place + a : place + a + b].decode()
        data = log[place + a + b : place + a + b + size]
        place += a + b + size
        yield Change(head["kind"].decode(), int(head["ino"]), int(head["at"]), *names, data)


@dataclass
class File:
    """The bytes of an inode: those that were written, those that a sync has brought to the disk."""

    now: bytearray = field(default_factory=bytearray)
    synced: bytes = b""

    def torn(self, draws: np.random.Generator) -> bytes:
        """The synced bytes with a random half of the sectors that were written since."""
        out = bytearray(self.synced.ljust(len(self.now), b"\0")[: len(self.now)])
        for at in range(0, len(self.now), SECTOR):
            if draws.random() < 0.5:
                out[at : at + SECTOR] = self.now[at : at + SECTOR]
        return bytes(out)


class Disk:
    """A file system below a folder, as it is and as far as it is on the disk."""

    def __init__(self, under: str) -> None:
        self.under = under
        self.names: dict[str, File | None] = {under: None}
        """Path -> file, None for a folder."""
        self.synced: dict[str, File | None] = {under: None}
        self._moved: dict[str, str] = {}
        """Folder -> what the disk still calls it."""
        self._by_inode: dict[int, File] = {}
        self._folders: dict[int, str] = {os.stat(under).st_ino: under}

    def take(self, change: Change) -> None:
        """Make one change."""
        kind, a, b = change.kind, change.a, change.b
        if kind == "C":
            self.names[a] = self._by_inode[change.ino] = File()
        elif kind == "D":
            self.names[a] = None
            self._folders[change.ino] = a
        elif kind in "UX":
            self.names.pop(a, None)
        elif kind == "L":
            self.names[b] = self.names[a]
        elif kind == "R":
            self._rename(a, b)
        elif kind == "S" and change.ino in self._folders:
            self._sync_folder(self._folders[change.ino])
        elif (file := self._by_inode.get(change.ino)) is not None:
            if kind == "W":
                file.now.extend(bytes(max(0, change.at - len(file.now))))
                file.now[change.at : change.at + len(change.data)] = change.data
            elif kind == "T":
                del file.now[change.at :]
                file.now.extend(bytes(max(0, change.at - len(file.now))))
            elif kind == "S":
                file.synced = bytes(file.now)

    def _rename(self, a: str, b: str) -> None:
        if a not in self.names:
            return
        file = self.names[a]
        if file is not None and file is self.names.get(b):
            return  # rename does nothing where both are one file
        for path in [path for path in self.names if path == a or path.startswith(a + "/")]:
            self.names[b + path[len(a) :]] = self.names.pop(path)
        for inode, path in self._folders.items():
            if path == a or path.startswith(a + "/"):
                self._folders[inode] = b + path[len(a) :]
        if file is None:
            self._moved[b] = self._moved.pop(a, a)

    def _sync_folder(self, folder: str) -> None:
        """Its names are on the disk now, and the folder itself in the one above."""
        if folder not in self.names:
            return
        begin = folder + "/"
        for path, before in [(new, old) for new, old in self._moved.items() if os.path.dirname(new) == folder]:
            inside = {name: file for name, file in self.synced.items() if name.startswith(before + "/")}
            self.synced |= {path + name[len(before) :]: file for name, file in inside.items()}  # it takes them along
            del self._moved[path]
        for path in [path for path in self.synced if path.startswith(begin)]:
            at = path[len(begin) :].split("/")[0]
            if begin + at not in self.names:
                del self.synced[path]
        for path, file in self.names.items():
            if path == folder or os.path.dirname(path) == folder:
                self.synced[path] = file

    def after_a_cut(self, mode: str, draws: np.random.Generator) -> dict[str, bytes | None]:
        """Path -> bytes (None: a folder) of what is left."""
        if mode == "synced":
            kept = {path: file for path, file in self.synced.items() if os.path.dirname(path) in self.synced}
            return {path: None if file is None else file.synced for path, file in kept.items()}
        of = {"all": lambda f: bytes(f.now), "names": lambda f: f.synced, "torn": lambda f: f.torn(draws)}[mode]
        return {path: None if file is None else of(file) for path, file in self.names.items()}


def build(state: dict[str, bytes | None], under: str) -> None:
    """Put a state on the real disk."""
    shutil.rmtree(under, ignore_errors=True)
    for path, content in sorted(state.items()):
        if content is None:
            os.makedirs(path, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            Path(path).write_bytes(content)
    os.makedirs(under, exist_ok=True)


def digest_of(state: dict[str, bytes | None]) -> bytes:
    """One hash of a state; SQLite makes its shared memory anew."""
    digest = hashlib.sha256()
    for path, content in sorted(state.items()):
        if not path.endswith("-shm"):
            digest.update(path.encode() + b"\0" + (b"folder" if content is None else hashlib.sha256(content).digest()))
    return digest.digest()


def done(work: Work, place: Path, log: Path | None = None) -> str:
    """Do it in a forked process, what it changes recorded or not; "" or what went wrong."""

    def do() -> int:
        os.environ |= {"HOME": str(place / "home"), "XDG_CACHE_HOME": ""}
        if log is not None:
            os.environ |= {"RECORD_BELOW": str(place), "RECORD_TO": str(log)}
            ctypes.CDLL(None).record_below(str(place).encode(), str(log).encode())
        return work.do(place)

    place.mkdir(parents=True, exist_ok=True)
    outcome = in_child(do, SECONDS)
    return outcome.fault or ("" if outcome.status == 0 else f"exit status {outcome.status}: {outcome.said[-300:]!r}")


def trial(work: Work, place: Path, wanted: str) -> str:
    """What falls short on the disk that lies at `place`; "" where nothing does."""
    run = place / "run"
    if (run / "config.toml").is_file():
        found = attempt(["verify", run, "--updates", "0", "--json"], seconds=SECONDS)
        if found.fault:
            return f"verify: {found.fault}"
        try:
            told = json.loads(found.said[found.said.index("{") :])
        except ValueError:
            return f"verify: {found.said[-300:]!r}"
        if told["state"] == "damaged":
            faults = [f"{one['file']}: {one['sentence']}" for check in told["checks"] for one in check["faults"]]
            return f"verify calls it damaged: {faults[0][:200]}"
    if trouble := done(work, place):
        return f"again: {trouble}"
    if work.end(place) != wanted:
        return "its end is another"
    left = [str(path.relative_to(place)) for path in place.rglob(".part-*") if "home" not in path.parts]
    return f"{left[0]} was left behind" if left else ""


def cut(work: Work, place: Path, most: int, seed: int, say: Callable[[str], None]) -> dict[str, object]:
    """Every cut of one command, or `most` of them, spread evenly."""
    log = place.parent / f"{work.name}.log"
    place.mkdir()
    disk = Disk(str(place))
    trouble = done(work, place, log)
    assert not trouble, f"{work.name}: {trouble}"
    wanted = work.end(place)
    recorded, draws = list(changes(log.read_bytes())), np.random.default_rng(seed)
    n_points = len(recorded) + 1
    chosen = set(np.linspace(0, n_points - 1, min(n_points, max(1, most // 2))).astype(int).tolist()) if most else None
    seen: set[bytes] = set()
    n_cuts, n_tried, wrong, by_mode = 0, 0, [], Counter()
    began = time.monotonic()
    for point in range(n_points):
        if point:
            disk.take(recorded[point - 1])
        if chosen is not None and (point not in chosen or n_tried >= most):
            continue
        for mode in MODES:
            state = disk.after_a_cut(mode, draws)
            n_cuts += 1
            if (digest := digest_of(state)) in seen:
                continue
            seen.add(digest)
            build(state, str(place))
            n_tried, by_mode[mode] = n_tried + 1, by_mode[mode] + 1
            if short := trial(work, place, wanted):
                wrong.append(f"{work.name}, cut after change {point} of {len(recorded)}, {mode}: {short}")
                say(wrong[-1])
    say(f"{work.name}: {len(recorded)} changes, {n_cuts} cuts, {n_tried} different disks, {len(wrong)} not survived,"
        f" {time.monotonic() - began:.0f} s")  # fmt: skip
    return {"name": work.name, "changes": len(recorded), "cuts": n_cuts, "tried": n_tried, "wrong": wrong}


def page(found: list[dict], seconds: float) -> str:
    """The result as Markdown."""
    n, wrong = sum(one["tried"] for one in found), [line for one in found for line in one["wrong"]]
    lines = ["# Power cuts", "", f"`python tests/campaigns/power_cuts.py` on {machine()}, {seconds:.0f} s.", ""]
    lines += [f"{n:,} different disks after a power cut; {len(wrong)} were not survived.", ""]
    lines += ["| command | recorded changes | cuts | different disks | not survived |", "|---|---|---|---|---|"]
    lines += [f"| {o['name']} | {o['changes']:,} | {o['cuts']:,} | {o['tried']:,} | {len(o['wrong'])} |" for o in found]
    return "\n".join([*lines, "", *(f"- {line}" for line in wrong)]).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", default="train,ranks,watch,tokenise,study,import,export,report")
    parser.add_argument("--most", type=int, default=0, help="different disks to try for each command (0: all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--page", type=Path, help="write the result there as well")
    args = parser.parse_args()
    if "recorder" not in os.environ.get("LD_PRELOAD", ""):
        library = Path(tempfile.mkdtemp(prefix="qkv-recorder-")) / "recorder.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, HERE / "recorder.c", "-ldl"], check=True)
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"LD_PRELOAD": str(library)})
    warm()
    place, began, found = Path(tempfile.mkdtemp(prefix="qkv-power-")), time.monotonic(), []
    try:
        names = args.works.split(",")
        for work in [work for work in works(place, STEPS) if work.name in names]:
            found.append(cut(work, place / work.name, args.most, args.seed, lambda line: print(line, flush=True)))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    text = page(found, time.monotonic() - began)
    print(text)
    if args.page:
        args.page.write_text(text, encoding="utf-8")
    sys.exit(any(one["wrong"] for one in found))


if __name__ == "__main__":
    main()
