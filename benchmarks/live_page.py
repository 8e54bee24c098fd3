"""What an open live page costs a training, and how far behind the training it shows.

    python benchmarks/live_page.py tinyshakespeare/input.txt --steps 3000

One training, with `qkv view` on its folder and a headless Chromium with the page open at the matrices, which follow the
newest step; server and browser run on the cores that the training runs on. Printed is the processor time of both: what
opening the page takes once, and then, while it follows, as a share of one core and of the machine. (The training's own
seconds with and without a page differ less than a shared machine's speed does from one minute to the next.) Then
another training with the page open at its top: how long after it was written a step stood on the page. Needs Linux and
the extra `dev`.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from command import fresh, machine
from turns import family, worked

from qkv.telemetry import Telemetry

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--open", action="store_true", help="TEXT is a run folder: only open its page, until stopped")
    args = parser.parse_args()
    if args.open:
        return opened(args.text)
    print(machine(), flush=True)
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
        tell(signal.SIGKILL, family(page.pid))
        page.wait()
    process.wait()
    shutil.rmtree(run.parent)
    if until - began < 10:
        sys.exit("the training ended before the page had followed it for ten seconds: take more --steps")
    return opening, following - opening, until - began


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


def tell(which: signal.Signals, processes: Iterable[int]) -> None:
    """Send a signal to those that are still there."""
    for process in processes:
        try:
            os.kill(process, which)
        except ProcessLookupError:
            pass


def opened(run: Path) -> None:
    """Serve a run as soon as it is there and look at its matrices, until stopped."""
    server, address = served(run)
    place = fresh()
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
    flags += ["--no-first-run", "--window-size=1280,900", f"--user-data-dir={place}", "--remote-debugging-port=0"]
    subprocess.Popen([str(CHROMIUM), *flags, f"{address}#room=grid"], stderr=subprocess.DEVNULL)
    server.wait()


def served(run: Path) -> tuple[subprocess.Popen[str], str]:
    """(the server of a run, its address) once the run is there."""
    while not (run / "telemetry.sqlite").is_file():
        time.sleep(0.05)
    words = [sys.executable, "-m", "qkv", "view", str(run), "--port", "0"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
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
