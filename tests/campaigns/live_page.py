"""What an open live page costs a training, and how far behind the training it shows.

    python tests/campaigns/live_page.py tinyshakespeare/input.txt --steps 3000
    python tests/campaigns/live_page.py tinyshakespeare/input.txt --steps 1500 --pairs 6

One training, with `qkv view` on its folder and a headless Chromium with the page open at the matrices, which follow the
newest step; server and browser run on the cores that the training runs on. Printed is the processor time of both: what
opening the page takes once, and then, while it follows, as a share of one core and of the machine. (The training's own
seconds with and without a page differ less than a shared machine's speed does from one minute to the next.) Then
another training with the page open at its top: how long after it was written a step stood on the page. Needs Linux and
the extra `dev`.

With --pairs, by the clock instead: trainings with an open page and without one, in turns (turns.py). Server and browser
have their training's turns, so they are still for half of the time; they are a copy that allows itself half as much of
the clock (`SLOWER`), which is as much of the training as ours does. The page is opened while its training is held at
step 64, and that is not counted; the seconds are those of whole commands. Needs root.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from command import fresh, machine
from turns import Command, Company, family, in_turns, interval, worked

import qkv
from qkv.telemetry import Telemetry

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

OPENED_AT = 64
"""The step at which --pairs opens the page."""

SLOWER = (
    ("follow.py", "LOOK_EVERY = 1.5", "LOOK_EVERY = 3.0"),
    ("follow.py", "SHARE = 0.002", "SHARE = 0.001"),
    ("static/server.js", "SHARE = 0.002", "SHARE = 0.001"),
    ("static/live.js", "LEAST = 1;", "LEAST = 2;"),
)
"""What a page does by the clock, and the same for one that is held still half of the time: file, words, words."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--pairs", type=int, default=0, help="by the clock, so many pairs")
    parser.add_argument("--turn", type=float, default=0.5, help="seconds, of --pairs")
    parser.add_argument("--open", action="store_true", help="TEXT is a run folder: only open its page, until stopped")
    parser.add_argument(
        "--slower", action="store_true", help="of --open: with a copy that takes half as much of the clock"
    )
    args = parser.parse_args()
    if args.open:
        return opened(args.text, slower=args.slower)
    print(machine(), flush=True)
    if args.pairs:
        return by_the_clock(args.text, args.steps, args.pairs, args.turn)
    opening, following, seconds = what_it_takes(args.text, args.steps)
    share = following / seconds
    print(
        f"the page worked {opening:.1f} s to open, then {following:.2f} s in {seconds:.0f} s of training: "
        f"{100 * share:.2f} % of one core, {100 * share / (os.cpu_count() or 1):.2f} % of {os.cpu_count()}"
    )
    delays = sorted(late(args.text, args.steps // 3))
    if not delays:
        sys.exit("no step was seen on the page while the training ran: take more --steps")
    print(
        f"a step stands on the page {delays[len(delays) // 2]:.2f} s after it was written (median of {len(delays)}), "
        f"{delays[-1]:.2f} s at the latest"
    )
    return None


def what_it_takes(text: Path, steps: int) -> tuple[float, float, float]:
    """Processor seconds of server and browser to open a page, those to follow, and the seconds that they followed."""
    run = fresh() / "run"
    process = subprocess.Popen(training(text, steps, run), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    page = subprocess.Popen([sys.executable, __file__, str(run), "--open"], stderr=subprocess.DEVNULL)
    try:
        while not (run / "telemetry.sqlite").is_file():
            time.sleep(0.05)
        opening, began = settled(page.pid), time.monotonic()
        following, until = opening, began
        while process.poll() is None and not (run / "manifest.json").is_file():  # then the page loads itself again
            following, until = sum(map(worked, family(page.pid))), time.monotonic()
            time.sleep(0.2)
    finally:
        for one in family(page.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        page.wait()
    process.wait()
    shutil.rmtree(run.parent)
    if until - began < 10:
        sys.exit("the training ended before the page had followed it for ten seconds: take more --steps")
    return opening, following - opening, until - began


def by_the_clock(text: Path, steps: int, pairs: int, turn: float) -> None:
    """Print the seconds of trainings with a page and without, and their ratio."""
    ratios = []
    for number in range(pairs):
        alone, followed = (Command(training(text, steps, place / "run"), place) for place in (fresh(), fresh()))
        company = Company()
        try:
            page = held_open(followed, company)
            before = sum(map(worked, company.members()))
            in_turns([alone, followed] if number % 2 == 0 else [followed, alone], turn)
            took = sum(map(worked, company.members())) - before
        finally:
            company.end()
        page.wait()
        ratios.append(followed.seconds / alone.seconds)
        print(
            f"pair {number + 1}: {alone.seconds:.2f} s alone, {followed.seconds:.2f} s with a page that worked"
            f" {took:.2f} s: {ratios[-1]:.4f}",
            flush=True,
        )
        for one in (alone, followed):
            shutil.rmtree(one.folder)
    if len(ratios) > 1:
        print("with a page over alone: {:.4f}, 95 % interval {:.4f} to {:.4f}".format(*interval(ratios)))


def held_open(command: Command, company: Company) -> subprocess.Popen[bytes]:
    """Run a training until all its rooms are there (before, a page lays itself out again as they come), then open its
    page while it is held still.
    """
    run = command.folder / "run"
    while not (run / "checkpoints" / f"step-{OPENED_AT:08d}").is_dir():
        command.turn(0.2)
    words = [sys.executable, __file__, str(run), "--open", "--slower"]
    page = subprocess.Popen(words, stderr=subprocess.DEVNULL, preexec_fn=company.join)  # noqa: PLW1509
    settled(page.pid)
    company.hold()
    command.company = company
    return page


def training(text: Path, steps: int, run: Path) -> list[str]:
    """The command."""
    words = ["train", str(text), "--tokenizer", "char", "--steps", str(steps), "--seed", "1", "--no-report"]
    return [sys.executable, "-m", "qkv", *words, "--out", str(run)]


def settled(root: int, most: float = 60.0) -> float:
    """Wait until a process and all that it started have hardly worked for two seconds; what they worked until then."""
    began, calm, before = time.monotonic(), 0, 0.0
    while calm < 2 and time.monotonic() - began < most:
        time.sleep(1.0)
        now = sum(map(worked, family(root)))
        calm = calm + 1 if now > 1.0 and now - before < 0.1 else 0
        before = now
    return before


def opened(run: Path, *, slower: bool) -> None:
    """Serve a run as soon as it is there and look at its matrices, until stopped."""
    server, address = served(run, slow_copy() if slower else None)
    place = fresh()
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
    flags += ["--no-first-run", "--window-size=1280,900", f"--user-data-dir={place}", "--remote-debugging-port=0"]
    subprocess.Popen([str(CHROMIUM), *flags, f"{address}#section=grid"], stderr=subprocess.DEVNULL)
    server.wait()


def slow_copy() -> Path:
    """A copy of the package whose page allows itself half as much of the clock; where it is to be imported from."""
    place = fresh()
    shutil.copytree(Path(qkv.__file__).parent, place / "qkv", ignore=shutil.ignore_patterns("__pycache__"))
    for name, said, instead in SLOWER:
        path = place / "qkv" / "views" / name
        before = path.read_text(encoding="utf-8")
        assert before.count(said) == 1, f"{name} has no one {said!r}"
        path.write_text(before.replace(said, instead), encoding="utf-8")
    return place


def served(run: Path, package: Path | None = None) -> tuple[subprocess.Popen[str], str]:
    """(the server of a run, its address) once the run is there; of the `package` in that folder, else of this one."""
    while not (run / "telemetry.sqlite").is_file():
        time.sleep(0.05)
    words = [sys.executable, "-m", "qkv", "view", str(run), "--port", "0"]
    where = {"PYTHONPATH": str(package)} if package else {}
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ | where)
    assert server.stdout is not None
    return server, server.stdout.readline().split(" at ")[1].split()[0]


def late(text: Path, steps: int) -> list[float]:
    """Delays of the page of one training that nobody holds still."""
    from playwright.sync_api import sync_playwright

    run = fresh() / "run"
    process = subprocess.Popen(training(text, steps, run), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        found = followed(run, process, browser)
        browser.close()
    process.wait()
    return found


def followed(run: Path, training: subprocess.Popen, browser) -> list[float]:
    """Open the page on a run that trains; seconds from the writing of a step to its standing there."""
    server, address = served(run)
    written: list[tuple[float, int]] = []
    stop = threading.Event()
    clock = threading.Thread(target=_watch, args=(run, written, stop), daemon=True)
    clock.start()
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(address)
    page.wait_for_selector("html[data-ready=yes]", timeout=120_000)
    shown: dict[int, float] = {}  # by step, when it was first seen on the page
    while training.poll() is None and not (run / "manifest.json").is_file():  # then the page loads itself again
        text = page.evaluate("document.querySelector('.live')?.textContent ?? ''")
        digits = text.partition("step ")[2].partition(", loss")[0].replace(",", "")
        if digits.isdigit():
            shown.setdefault(int(digits), time.monotonic())
        time.sleep(0.1)
    stop.set()
    clock.join()
    page.close()
    server.terminate()
    server.wait()
    first = min(shown, default=0)
    return [
        at - next(t for t, step in written if step >= n)
        for n, at in shown.items()
        if n > first and written and written[-1][1] >= n and written[0][1] < n
    ]


def _watch(run: Path, written: list[tuple[float, int]], stop: threading.Event) -> None:
    """When each step was first seen in the telemetry."""
    while not stop.is_set():
        with Telemetry(run / "telemetry.sqlite") as telemetry:
            step = telemetry.last_step()
        if step and (not written or step > written[-1][1]):
            written.append((time.monotonic(), step))
        time.sleep(0.1)


if __name__ == "__main__":
    main()
