"""What an open live page costs a training, in ABBA pairs, and how far behind the training it shows.

    python benchmarks/live_page.py tinyshakespeare/input.txt --pairs 5 --steps 600

A: training alone. B: the same with `qkv view` on its folder and a headless Chromium that has the page open, scrolled to
the matrices, following the newest step; both run on the cores that the training runs on. Prints the ratio of training
seconds with its 95 % t interval, and how long after it was written a step stood on the page. Needs the extra `dev`.
"""

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from command import fresh, machine

from qkv.telemetry import Telemetry

T95 = {1: 12.7, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
"""Student's t at 97.5 % by degrees of freedom."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=600)
    args = parser.parse_args()
    from playwright.sync_api import sync_playwright

    print(machine())
    ratios, delays = [], []
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for pair in range(args.pairs):
            seconds = {False: 0.0, True: 0.0}
            for watched in (False, True, True, False):
                taken, late = trained(args.text, args.steps, browser if watched else None)
                seconds[watched] += taken
                delays += late
            ratios.append(seconds[True] / seconds[False])
            print(f"pair {pair + 1}: {ratios[-1]:.4f}", flush=True)
        browser.close()
    if len(ratios) > 1:
        reach = T95.get(len(ratios) - 1, 1.96) * statistics.stdev(ratios) / math.sqrt(len(ratios))
        print(f"training with an open page over training alone: {statistics.mean(ratios):.4f} +- {reach:.4f}")
    delays.sort()
    print(
        f"a step stands on the page {delays[len(delays) // 2]:.2f} s after it was written (median), {delays[-1]:.2f} s"
    )
    print("  at the latest")


def trained(text: Path, steps: int, browser) -> tuple[float, list[float]]:
    """(training seconds, delays of the page) of one training."""
    run = fresh() / "run"
    words = [
        "train",
        str(text),
        "--tokenizer",
        "char",
        "--steps",
        str(steps),
        "--no-report",
        "--json",
        "--out",
        str(run),
    ]
    process = subprocess.Popen([sys.executable, "-m", "qkv", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    late = followed(run, process, browser) if browser else []
    out, _ = process.communicate()
    return json.loads(out)["train_seconds"], late


def followed(run: Path, training: subprocess.Popen, browser) -> list[float]:
    """Open the page on a run that trains; seconds from the writing of a step to its standing there."""
    while not (run / "telemetry.sqlite").is_file():
        time.sleep(0.05)
    words = [sys.executable, "-m", "qkv", "view", str(run), "--port", "0"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    address = server.stdout.readline().split(" at ")[1].split()[0]
    written: list[tuple[float, int]] = []
    stop = threading.Event()
    clock = threading.Thread(target=_watch, args=(run, written, stop), daemon=True)
    clock.start()
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(address)
    page.wait_for_selector("html[data-ready=yes]", timeout=120_000)
    page.evaluate("document.querySelector('#grid').scrollIntoView()")
    shown: dict[int, float] = {}
    while training.poll() is None:
        text = page.locator(".live").text_content(timeout=2000) or ""
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
