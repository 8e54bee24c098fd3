"""kill -9 inside work in progress, at moments that are observed: nothing may be lost, nothing silently begun again.

    python tests/campaigns/campaign.py --faults 200 --page benchmarks/results.md
    python tests/campaigns/campaign.py --faults 8 --works train,export

Works: `train` (a training and its resume), `ranks` (one of two processes), `tokenise` (a training whose cache is empty,
so that a tokenizer is fitted and a text cut), `watch` (a loop of your own), `study`, `export`, `import`, `report`. Each
is made once undisturbed, while every moment at which it can be hit is counted: before an update, between gradients and
update, inside a telemetry transaction, in the middle of a write, before it is flushed to the disk, before and after a
rename, in a tokenizer's fit, between two trainings of a study. A fault kills the process at one of these, having said
which: only what said so is counted; or at a random moment of the clock, which counts where the work had not ended (of
two ranks now one is killed, now all). Then the same command is given again (`--resume` where a run is there), and the
end is compared with the undisturbed one, byte for byte. A training must go on from its newest whole checkpoint and say
so. A loop of your own is not gone on with: what it left must be readable, hold no row that the undisturbed one does
not have, and is removed before the loop is done again.

Every fault is named by --seed: the same seed makes the same faults. Exit status 1 if one was not survived.
"""

import argparse
import contextlib
import datetime
import hashlib
import importlib
import importlib.util
import json
import os
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attempt import warm
from command import machine
from kill_resume import STEPPED, fingerprint
from transformers import GPT2Config, GPT2LMHeadModel

from qkv import watch
from qkv.cli import main as qkv

TINY_STUDY = Path(__file__).parents[1] / "studies" / "tiny_study.py"
SMALL = ["--threads", "1", "--precision", "fp32", "--no-report"]
SIZES = "d_model=16,n_layers=1,n_heads=2,n_ctx=32,batch_size=16"

CALLS = {
    "before an update": ("qkv.training.loop", "update"),
    "between gradients and update": ("qkv.training.optimizers", "Optimizer.step"),
    "before a checkpoint is written": ("qkv.training.checkpoint", "Checkpoints._finish"),
    "before a validation": ("qkv.training.validation", "Validation._pass"),
    "fitting a tokenizer": ("qkv.data.corpus", "fit_tokenizer"),
    "cutting a text": ("qkv.tokenizers.tokenizer", "Tokenizer.encode_many"),
    "keeping tokens": ("qkv.data.tokenizing", "_write_parts"),
    "before a study's row is written": ("qkv.studies.engine.store", "StudyFolder.append"),
    "before a file is written": ("qkv.folder.run_folder", "write_atomically"),
    "before a flush to the disk": ("os", "fsync"),
    "before a rename": ("os", "replace"),
    "before a folder is renamed": ("os", "rename"),
    "before a link": ("os", "link"),
}
"""What a process is doing -> the function that is about to be called."""
HALF, INSIDE, AFTER = "in the middle of a write", "inside a telemetry transaction", "after a rename"
ANY = "at a random moment"
"""By the clock; `at` is a thousandth of the time that the work takes undisturbed."""


@dataclass
class Moments:
    """Counts moments, and kills this process at the n-th one of a kind, having written down which."""

    log: Path
    kind: str = ""
    at: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    owner: int = field(default_factory=os.getpid)

    def now(self, kind: str, before: Callable[[], object] = bool) -> None:
        """It is happening."""
        if os.getpid() != self.owner:  # a worker that was forked: its faults are another process's
            return
        self.seen[kind] += 1
        if kind == self.kind and self.seen[kind] == self.at:
            before()
            self.log.write_text(kind)
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        """Stand at every moment of this process."""
        for kind, (module, name) in CALLS.items():
            self._stand(kind, importlib.import_module(module), name.split("."))
        store = importlib.import_module("qkv.telemetry.writer").Store
        inside, write, replace = store._transaction, os.write, os.replace

        @contextlib.contextmanager
        def transaction(this: Any) -> Iterator[Any]:
            with inside(this) as connection:
                yield connection
                self.now(INSIDE)

        def half(descriptor: int, data: Any) -> int:
            part = bytes(data[: max(1, len(data) // 2)])
            if len(data) > 8:
                self.now(HALF, lambda: write(descriptor, part))
            return write(descriptor, data)

        def renamed(*args: Any, **given: Any) -> None:
            replace(*args, **given)
            self.now(AFTER)

        store._transaction, os.write, os.replace = transaction, half, renamed

    def _stand(self, kind: str, owner: Any, names: list[str]) -> None:
        for name in names[:-1]:
            owner = getattr(owner, name)
        called = getattr(owner, names[-1])

        def standing(*args: Any, **given: Any) -> Any:
            self.now(kind)
            return called(*args, **given)

        setattr(owner, names[-1], standing)


@dataclass(frozen=True)
class Work:
    """Something that is done, that can be killed, and that is done again."""

    name: str
    do: Callable[[Path], int]
    """Does it in a folder, or goes on with it; an exit status."""
    end: Callable[[Path], str]
    """One hash of all that it leaves."""


def trained(text: Path, steps: int, *words: str, n: int = 1) -> Callable[[Path], int]:
    def do(place: Path) -> int:
        out, processes = place / "run", ["--nproc", str(n)] if n > 1 else []
        if n > 1:  # new processes with an empty cache would compile and measure kernels again
            os.environ["QKV_NATIVE"] = "0"
        if (out / "config.toml").exists():
            return qkv(["train", "--out", str(out), "--resume", "--no-report", *processes])
        given = ["train", str(text), *words, *SMALL, "--steps", str(steps), "--set", SIZES, "--out", str(out)]
        return qkv([*given, *processes])

    return do


def looped(whole: Path, steps: int) -> Callable[[Path], int]:
    """A loop of your own under `qkv.watch`; `whole` holds what it leaves undisturbed."""

    def loop(out: Path) -> None:
        torch.manual_seed(0)
        config = GPT2Config(vocab_size=23, n_positions=12, n_embd=16, n_layer=1, n_head=2)
        model = GPT2LMHeadModel(config)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        watcher = watch(model, optimizer, out, level="full")
        for ids in torch.randint(0, 23, (steps, 4, 12), generator=torch.Generator().manual_seed(0)):
            optimizer.zero_grad()
            loss = model(ids, labels=ids).loss
            loss.backward()
            watcher.log(loss=loss.detach())
            optimizer.step()
        watcher.close()

    def do(place: Path) -> int:
        if not whole.exists():
            loop(whole)
        run = place / "run"
        if (run / "config.toml").exists() and qkv(["show", str(run)]) not in (0, 2):
            return 3
        if (strange := rows_of(run) - rows_of(whole)) and (run / "config.toml").exists():
            print("not a row of the undisturbed loop:", sorted(strange)[0])
            return 4
        shutil.rmtree(run, ignore_errors=True)
        loop(run)
        return 0

    return do


def rows_of(run: Path) -> set[str]:
    """Every row of its telemetry that has a step; none where there is no telemetry yet."""
    found: set[str] = set()
    if not (run / "telemetry.sqlite").exists():
        return found
    with contextlib.closing(sqlite3.connect(run / "telemetry.sqlite")) as database:
        there = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table in there.intersection(STEPPED):
            found.update(f"{table} {row!r}" for row in database.execute(f"SELECT * FROM {table}"))
    return found


def studied(text: Path) -> Callable[[Path], int]:
    def do(place: Path) -> int:
        spec = importlib.util.spec_from_file_location("tiny_study", TINY_STUDY)
        assert spec is not None and spec.loader is not None
        tiny = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(tiny)
        tiny.answer(text, place / "runs", workers=1)
        return 0

    return do


def end_of_study(place: Path) -> str:
    (verdict,) = (place / "runs").glob("*/verdict.json")
    told = json.loads(verdict.read_text())
    rows = sorted(json.loads(line)["key"] for line in (verdict.parent / "runs.jsonl").read_text().splitlines())
    kept = {name: value for name, value in told.items() if name != "run"}
    return hashlib.sha256(json.dumps([kept, rows], sort_keys=True).encode()).hexdigest()


def end_of_files(place: Path, *patterns: str) -> str:
    digest = hashlib.sha256()
    for file in sorted({file for pattern in patterns for file in place.glob(pattern)}):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def works(place: Path, steps: int = 120) -> list[Work]:
    """All of them, on a text of our own making, with trainings of so many steps or fewer; `place` keeps the run that is
    exported."""
    draws = np.random.default_rng(0)
    words = [f"{a}{b}{c}" for a in "bdfklmnprst" for b in "aeiou" for c in "lmnrst"]
    lines = [" ".join(draws.choice(words, size=8)) + "." for _ in range(30_000)]
    (place / "small.txt").write_text("\n".join(lines[:1500]) + "\n")
    (place / "large.txt").write_text("\n".join(lines) + "\n")
    train = trained(place / "small.txt", steps, "--tokenizer", "char", "--watch", "full")

    def source() -> Path:
        """The run that is exported, made once."""
        if not (place / "exported").exists():
            (place / "exported").mkdir()
            train(place / "exported")
        return place / "exported" / "run"

    def exported(here: Path) -> int:
        run = source()
        shutil.rmtree(here / "out", ignore_errors=True)  # a folder that stands is never written into
        return qkv(["export", str(run), "--out", str(here / "out")])

    def imported(here: Path) -> int:
        if not (place / "folder").exists():
            exported(place / "folder-made")
            shutil.move(place / "folder-made" / "out", place / "folder")
        if (here / "run").exists():  # it is there whole: an import is never gone on with
            return 0
        return qkv(["import", str(place / "folder"), "--out", str(here / "run")])

    def reported(here: Path) -> int:
        return qkv(["report", str(source()), "--out", str(here / "report.html")])

    tokenise = trained(place / "large.txt", 4, "--tokenizer", "bpe", "--vocab", "400", "--watch", "off")
    ranks = trained(place / "small.txt", steps // 6, "--tokenizer", "char", n=2)
    return [
        Work("train", train, lambda here: fingerprint(here / "run")),
        Work("ranks", ranks, lambda here: fingerprint(here / "run")),
        Work(
            "watch",
            looped(place / "watched" / "run", steps // 4),
            lambda here: fingerprint(here / "run", ("model.safetensors",)),
        ),
        Work("tokenise", tokenise, lambda here: fingerprint(here / "run")),
        Work("study", studied(place / "small.txt"), end_of_study),
        Work("export", exported, lambda here: end_of_files(here / "out", "*")),
        Work(
            "import", imported, lambda here: end_of_files(here / "run", "config.toml", "*.safetensors", "token*.json")
        ),
        Work("report", reported, lambda here: end_of_files(here, "report.html")),
    ]


def in_child(work: Work, place: Path, moments: Moments | None, said: Path, at: float = 0.0, which: int = 0) -> int:
    """Do it in a forked process with a cache of its own; the wait status. What it says goes to `said`.

    After `at` seconds, where that is not 0, it is killed, with all that it started; or, where it started processes and
    `which` is odd, one of these alone.
    """
    place.mkdir(parents=True, exist_ok=True)
    child = os.fork()
    if child:
        return _killed_after(child, at, which) if at else os.waitpid(child, 0)[1]
    status = 1
    try:
        os.environ["HOME"], os.environ["XDG_CACHE_HOME"] = str(place / "home"), ""
        sink = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(sink, stream)
        if moments is not None:
            moments.owner = os.getpid()
            moments.watch()
        status = work.do(place)
        sys.stdout.flush()
        sys.stderr.flush()
        if moments is not None and not moments.kind:
            moments.log.write_text(json.dumps(moments.seen))
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}".encode())
    finally:
        os._exit(status)


def _killed_after(child: int, seconds: float, which: int) -> int:
    """Kill it then, unless it has ended; its wait status."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.001)
    started = [int(one) for one in Path(f"/proc/{child}/task/{child}/children").read_text().split()]
    if started and which % 2:
        os.kill(started[which // 2 % len(started)], signal.SIGKILL)
        os.waitpid(child, 0)
        return signal.SIGKILL
    for one in (child, *started):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    while any(Path(f"/proc/{one}").exists() for one in started):
        time.sleep(0.001)
    return os.waitpid(child, 0)[1]


def newest_checkpoint(run: Path) -> int:
    """The step of the newest one that stands under its name, 0 where there is none."""
    return max((int(path.parent.name[5:]) for path in run.glob("checkpoints/step-*/state.json")), default=0)


def strike(work: Work, place: Path, kind: str, at: int, wanted: str, seconds: float) -> str | None:
    """One fault, and going on after it: "" if all is well, else what is not; None where it hit nothing."""
    shutil.rmtree(place, ignore_errors=True)
    log, said = place.with_suffix(".log"), place.with_suffix(".txt")
    log.unlink(missing_ok=True)
    if kind == ANY:
        status = in_child(work, place, None, said, at=seconds * at / 1000, which=at)
    else:
        status = in_child(work, place, Moments(log, kind, at), said)
    if not os.WIFSIGNALED(status) or (kind != ANY and not (log.exists() and log.read_text() == kind)):
        return None
    kept = newest_checkpoint(place / "run")
    if in_child(work, place, None, said):
        return f"it did not go on: {said.read_text()[-300:]!r}"
    words = said.read_text()
    if kept and f"going on from step {kept}" not in words and "nothing is left to do" not in words:
        return f"it did not go on from the checkpoint of step {kept}"
    if work.end(place) != wanted:
        return "its end is another"
    left = [str(path.relative_to(place)) for path in place.rglob(".part-*") if "home" not in path.parts]
    return f"{left[0]} was left behind" if left else ""


def campaign(faults: int, names: list[str], seed: int, told: Callable[[str], None] = print) -> dict[str, Any]:
    """`faults` counted ones, shared out among the works and their moments."""
    warm()
    for module, _ in CALLS.values():
        importlib.import_module(module)
    place = Path(tempfile.mkdtemp(prefix="qkv-campaign-"))
    began, rows, wrong = time.monotonic(), [], []
    try:
        chosen = [work for work in works(place) if work.name in names]
        for number, work in enumerate(chosen):
            share = faults // len(chosen) + (number < faults % len(chosen))
            log, said = place / "moments.json", place / "said.txt"
            assert in_child(work, place / f"{work.name}-warm", None, said) == 0, said.read_text()
            start = time.monotonic()
            assert in_child(work, place / work.name, Moments(log), said) == 0, said.read_text()
            seen, wanted = {**json.loads(log.read_text()), ANY: 1000}, work.end(place / work.name)
            took = time.monotonic() - start
            assert work.end(place / f"{work.name}-warm") == wanted, f"{work.name} does not repeat itself"
            draws, counted, tried = np.random.default_rng([seed, number]), Counter(), 0
            while sum(counted.values()) < share and tried < 3 * share + 9:
                kind = ANY if tried % 2 else sorted(seen)[tried // 2 % len(seen)]
                tried += 1
                at = int(draws.integers(1, seen[kind] + 1))
                outcome = strike(work, place / "struck", kind, at, wanted, took)
                if outcome is None:
                    continue
                counted[kind] += 1
                if outcome:
                    wrong.append(f"{work.name}, killed {kind} ({at} of {seen[kind]}): {outcome}")
                    told(wrong[-1])
            rows += [(work.name, kind, seen[kind], counted[kind]) for kind in sorted(counted)]
            told(f"{work.name}: {sum(counted.values())} faults counted, {time.monotonic() - began:.0f} s")
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return {"rows": rows, "wrong": wrong, "counted": sum(row[3] for row in rows), "seconds": time.monotonic() - began}


def page(found: dict[str, Any], seed: int) -> str:
    """The result as Markdown."""
    n = found["counted"]
    lines = [f"# Fault campaign of {datetime.date.today().isoformat()}", ""]
    lines += [
        f"`python tests/campaigns/campaign.py --faults {n} --seed {seed}` on {machine()}, {found['seconds']:.0f} s.",
        "",
    ]
    lines += [f"{n} faults hit work in progress; {len(found['wrong'])} were not survived byte for byte.", ""]
    lines += ["| work | killed | such moments in it | faults |", "|---|---|---|---|"]
    lines += [f"| {work} | {kind} | {seen:,} | {counted} |" for work, kind, seen, counted in found["rows"]]
    return "\n".join([*lines, "", *(f"- {one}" for one in found["wrong"])]).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--works", default="train,ranks,watch,tokenise,study,export,import,report")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--page", type=Path, help="write the result there as well")
    args = parser.parse_args()
    found = campaign(args.faults, args.works.split(","), args.seed, lambda sentence: print(sentence, flush=True))
    text = page(found, args.seed)
    print(text)
    if args.page:
        args.page.write_text(text)
    sys.exit(bool(found["wrong"]) or found["counted"] < args.faults)


if __name__ == "__main__":
    main()
