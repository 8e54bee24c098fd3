"""An hour of training and of the live page: memory and open files must not grow.

    python tests/campaigns/soak.py TEXT --minutes 60 --page benchmarks/results.md

`qkv train` and `qkv view` run side by side; the page, its data, its rooms and the model's answer to a text are fetched
again and again as a browser would. Every few seconds resident memory and open files of both are read. After the first
third, in which buffers fill, the medians of the second and the last third are compared: they may differ by 5 % and 8 MB
of memory and by two files. Exit status 1 where they differ by more. Needs /proc (Linux).
"""

import argparse
import datetime
import itertools
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from command import machine
from turns import worked

from qkv.views.live.server import LIVE_SECTIONS

PAGES = ("/", "/payload", f"/sections?names={','.join(LIVE_SECTIONS)}")
QUESTION = {"text": "To be, or not to be", "step": None}
SECONDS = 5.0


def fetch(address: str) -> int:
    """Fetch every page and a model's answer, whole; how many there were. A refusal is an HTTPError."""
    wanted = [urllib.request.Request(address + name) for name in PAGES]
    body = json.dumps(QUESTION).encode()
    wanted.append(urllib.request.Request(f"{address}/ask/attention", body, {"content-type": "application/json"}))
    for one in wanted:
        with urllib.request.urlopen(one, timeout=3600) as answer:  # long: whoever measures may hold us all still
            answer.read()
    return len(wanted)


def sample(process: subprocess.Popen[str]) -> tuple[float, int]:
    """(MB that are resident, open files) of a process."""
    about = Path(f"/proc/{process.pid}")
    pages = int((about / "statm").read_text().split()[1])
    return pages * 4096 / 1e6, len(list((about / "fd").iterdir()))


def grown(samples: list[tuple[float, int]]) -> tuple[list[float], bool]:
    """(median memory and files of the second and of the last third, whether they stayed)."""
    third = len(samples) // 3
    parts = samples[third : 2 * third], samples[2 * third :]
    memory, files = ([statistics.median(row[i] for row in part) for part in parts] for i in (0, 1))
    stayed = memory[1] <= 1.05 * memory[0] + 8 and files[1] <= files[0] + 2
    return [*memory, *files], stayed


def over_time(samples: list[tuple[float, int]]) -> list[str]:
    """Median memory in each tenth of the samples, MB; of fewer than ten samples each by itself."""
    memory = [row[0] for row in samples]
    edges = [i * len(memory) // 10 for i in range(11)] if len(memory) >= 10 else [*range(len(memory) + 1)]
    return [f"{statistics.median(memory[first:last]):.1f}" for first, last in itertools.pairwise(edges)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--page", type=Path, help="write the result there as well")
    args = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="qkv-soak-"))
    run, qkv = place / "run", [sys.executable, "-m", "qkv"]
    words = ["train", str(args.text), "--tokenizer", "char", "--watch", "full", "--steps", "100000000", "--no-report"]
    words += ["--threads", "1", "--set", "d_model=32,n_layers=2,n_heads=2,n_ctx=64,batch_size=16", "--out", str(run)]
    training = subprocess.Popen([*qkv, *words], stderr=subprocess.DEVNULL, text=True)
    view = None
    try:
        while not (run / "checkpoints" / "step-00000008").exists():
            if training.poll() is not None:
                sys.exit("the training ended early")
            time.sleep(0.2)
        view = subprocess.Popen([*qkv, "view", str(run), "--port", "0"], stdout=subprocess.PIPE, text=True)
        assert view.stdout is not None
        address = next(word for word in view.stdout.readline().split() if word.startswith("http")).rstrip("/")
        samples: dict[str, list[tuple[float, int]]] = {"training": [], "page": []}
        until, fetched = time.monotonic() + 60 * args.minutes, 0
        while time.monotonic() < until:
            fetched += fetch(address)
            samples["training"].append(sample(training))
            samples["page"].append(sample(view))
            time.sleep(SECONDS)
        if training.poll() is not None or view.poll() is not None:
            sys.exit("one of them ended early")
        seconds = {"training": worked(training.pid), "page": worked(view.pid)}
    finally:
        for process in (training, view):
            if process is not None:
                process.terminate()
                process.wait()
        shutil.rmtree(place, ignore_errors=True)
    lines = [f"# Soak of {args.minutes:g} minutes, {datetime.date.today().isoformat()}", ""]
    lines += [f"`python tests/campaigns/soak.py {args.text.name} --minutes {args.minutes:g}` on {machine()}.", ""]
    lines += [f"{fetched:,} answers of the page. Medians of the second and of the last third:", ""]
    lines += ["| | processor s | MB then | MB at the end | files then | files at the end | stayed |"]
    lines += ["|---|---|---|---|---|---|---|"]
    stayed = True
    for name, found in samples.items():
        row, same = grown(found)
        stayed &= same
        figures = f"{row[0]:.1f} | {row[1]:.1f} | {row[2]:.0f} | {row[3]:.0f}"
        lines.append(f"| {name} | {seconds[name]:.0f} | {figures} | {'yes' if same else 'no'} |")
    parts = {name: over_time(found) for name, found in samples.items()}
    n = len(parts["page"])
    lines += ["", "Median MB, tenth by tenth of the time:", "", f"| | {' | '.join(map(str, range(1, n + 1)))} |"]
    lines += ["|---" * (n + 1) + "|", *(f"| {name} | {' | '.join(part)} |" for name, part in parts.items())]
    text = "\n".join([*lines, ""])
    print(text)
    if args.page:
        args.page.write_text(text)
    sys.exit(not stayed)


if __name__ == "__main__":
    main()
