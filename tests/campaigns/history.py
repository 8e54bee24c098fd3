"""A series of checkpoints of 160 M parameters in bf16, made here and imported in one pass: memory, speed and the page.

    python tests/campaigns/history.py --place /tmp/series [--steps 20] [--layers 12]

Every step is a GPT-NeoX of the size of Pythia 160M whose weights lie on a line from one random draw to another, so the
figures prove throughput and nothing else. The disk's own speed is that of reading the same files past the page cache,
and of writing one of the run's snapshots again with fsync. Needs 21 GB in PLACE, which is deleted at the end.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from command import machine
from safetensors.torch import save_file

PIECE = 1 << 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--place", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=12)
    args = parser.parse_args()
    place: Path = args.place
    place.mkdir()
    try:
        if (child := os.fork()) == 0:  # so that its memory is given back
            make(place / "series", args.steps, args.layers)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        files = sorted((place / "series").glob("*/model.safetensors"))
        read = sum(file.stat().st_size for file in files)
        print(f"{machine()}; {len(files)} steps, {read / 1e9:.2f} GB", flush=True)
        forget(files)
        tell("read, past the cache", read, timed(lambda: [reading(file) for file in files]))
        forget(files)
        run = place / "run"
        tell("qkv import --history", read, qkv("import", place / "series", "--history", "--out", run))
        snapshots = sorted((run / "checkpoints").glob("*/model.safetensors"))
        print(f"{sum(file.stat().st_size for file in snapshots) / 1e9:.1f} GB written", flush=True)
        content = snapshots[0].read_bytes()
        tell("write with fsync", len(content), timed(lambda: writing(place / "again", content)))
        qkv("report", run, "--out", place / "page.html")
        size = (place / "page.html").stat().st_size / 1e6
        print(f"a page of {size:.1f} MB, drawn in {drawn(place / 'page.html'):.1f} s", flush=True)
    finally:
        shutil.rmtree(place)


def make(series: Path, steps: int, layers: int) -> None:
    """Step folders, weights from one draw to another."""
    config = transformers.GPTNeoXConfig(
        vocab_size=50304, hidden_size=768, num_hidden_layers=layers, num_attention_heads=12, intermediate_size=3072,
        max_position_embeddings=2048, torch_dtype="bfloat16", bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    with torch.device("meta"):
        shapes = {name: p.shape for name, p in transformers.GPTNeoXForCausalLM(config).named_parameters()}
    torch.manual_seed(0)
    first, last = ({name: 0.02 * torch.randn(shape) for name, shape in shapes.items()} for _ in range(2))
    for step in range(steps):
        folder, share = series / f"step{1000 * step}", step / (steps - 1)
        folder.mkdir(parents=True)
        config.save_pretrained(folder)
        state = {name: torch.lerp(first[name], last[name], share).bfloat16() for name in shapes}
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def qkv(*words: object) -> float:
    """Seconds that a command took; its processor time and peak memory are printed."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "qkv", *map(str, words)], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    took, busy = time.perf_counter() - start, used.ru_utime + used.ru_stime
    assert status == 0, words
    print(
        f"qkv {words[0]}: {took:.0f} s, processor {busy:.0f} s, peak memory {used.ru_maxrss / 1e6:.2f} GB", flush=True
    )
    return took


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def tell(what: str, n_bytes: int, seconds: float) -> None:
    print(f"{what}: {seconds:.1f} s, {n_bytes / seconds / 1e6:.0f} MB/s", flush=True)


def reading(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        while file.read(PIECE):
            pass


def writing(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        os.fsync(file.fileno())


def forget(files: list[Path]) -> None:
    """Out of the page cache."""
    os.sync()
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def drawn(page: Path) -> float:
    """Seconds until every picture of a page is drawn, in Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        window = browser.new_page()
        start = time.perf_counter()
        window.goto(page.as_uri())
        window.wait_for_selector("html[data-ready=yes]", timeout=300_000)
        took = time.perf_counter() - start
        browser.close()
    return took


if __name__ == "__main__":
    main()
