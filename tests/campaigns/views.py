"""How fast the pictures are: sizes, first picture, hover and slider, in a real Chromium with the network denied.

    python tests/campaigns/views.py TEXT [--run RUN]

Makes run folders of the sizes that are measured (12 layers x 12 heads; 36 heads on 1,024 tokens; 144 on 2,048) by
training a step or some, and takes --run (any 4-layer run) for the report; --only names some of the parts. Needs the
extra `dev`.

Beside each time by the clock stands processor time, which a busy machine does not stretch as much: of the page's main
thread (Chromium's thread ticks), and of the server where it computes.
"""

import argparse
import base64
import json
import shutil
import tempfile
import threading
import time
import zlib
from pathlib import Path

import qkv
from qkv.views.live.server import Page
from qkv.views.live.serving import _listen, make_server

PARTS = ("qkv-payload", "qkv-numbers")
PARTS_MEASURED = ("report", "slider", "long")

PICTURE = """
  const look = new MutationObserver(() => {
    if (!document.querySelector('main svg, main canvas')) return;
    look.disconnect();
    requestAnimationFrame(() => setTimeout(() => (document.documentElement.dataset.picture = performance.now())));
  });
  look.observe(document, { childList: true, subtree: true });
"""
"""The first frame that holds a chart or a canvas, by the page's own clock."""

FRAMES = """async () => {
  const range = document.querySelector('input[type=range]');
  document.querySelector('#grid').scrollIntoView();
  const times = [];
  for (let i = 0; i < 90; i++) {
    range.value = String(i % (Number(range.max) + 1));
    range.dispatchEvent(new Event('input'));
    await new Promise((done) => requestAnimationFrame((now) => (times.push(now), done())));
  }
  const gaps = times.slice(1).map((t, i) => t - times[i]).sort((a, b) => a - b);
  return { median: gaps[Math.floor(gaps.length / 2)], worst: gaps[Math.floor(gaps.length * 0.95)] };
}"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text")
    parser.add_argument("--run")
    parser.add_argument("--only", nargs="+", choices=PARTS_MEASURED, default=PARTS_MEASURED)
    given = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        if given.run and "report" in given.only:
            report(browser, Path(given.run), Path(place))
        if "slider" in given.only:
            sizes = {"n_layers": 12, "n_heads": 12, "d_model": 192, "n_ctx": 128, "batch_size": 4}
            wide = made(given.text, Path(place) / "wide", sizes, steps=40)
            attention_adds(wide, Path(place), Path(given.text))
            slider(browser, wide)
        for layers, tokens in ((3, 1024), (12, 2048)):
            if "long" in given.only:
                sizes = {"n_layers": layers, "n_heads": 12, "d_model": 192, "n_ctx": tokens, "batch_size": 1}
                run = made(given.text, Path(place) / f"long-{layers}", sizes, steps=1)
                long_text(browser, run, Path(given.text), 12 * layers, tokens)
        browser.close()


def main_thread(page):
    """A function that gives the processor seconds of the page's main thread up to now."""
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})

    def seconds() -> float:
        metrics = {m["name"]: m["value"] for m in devtools.send("Performance.getMetrics")["metrics"]}
        return metrics["TaskDuration"]

    return seconds


def made(text: str, out: Path, sizes: dict[str, int], steps: int) -> Path:
    """A run folder of those sizes."""
    return qkv.train(text, out=out, tokenizer="char", steps=steps, set=sizes, watch="full", report=False).path


def report(browser, run: Path, place: Path) -> None:
    """Size of the report, and its first picture."""
    path = qkv.load(run).report(out=place / "report.html")
    print(f"report of {run.name}: {path.stat().st_size / 1e6:.2f} MB")
    for room, words, numbers, carried in by_room(path.read_text(encoding="utf-8")):
        sizes = [f"{size / 1e3:.0f}" for size in (words, numbers, carried)]
        print("  {:<12} {:>5} kB of words, {:>5} of numbers, deflated to {}".format(room, *sizes))
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
    context.add_init_script(PICTURE)
    page = context.new_page()
    spent = main_thread(page)
    page.goto(path.as_uri(), wait_until="commit")
    page.wait_for_selector("html[data-picture]")
    at_first = spent()
    page.wait_for_selector("html[data-ready=yes]")
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    ready = page.evaluate("performance.now()")
    picture = float(page.evaluate("document.documentElement.dataset.picture"))
    print(f"  first contentful paint {paint:.0f} ms, first picture {picture:.0f} ms")
    print(f"  every room by {ready:.0f} ms; of the main thread {at_first:.2f} s by the picture, {spent():.2f} s in all")
    context.close()


def by_room(page: str) -> list[tuple[str, int, int, int]]:
    """(room, bytes of its words, of its numbers, of these as the page carries them), the heaviest first.

    Numbers that two rooms share count for each of them.
    """
    words, packed = (page.partition(f'id="{name}">')[2].partition("</script>")[0] for name in PARTS)
    stored = zlib.decompress(base64.b64decode(packed))
    rows = []
    for room, payload in json.loads(words).items():
        arrays = b"".join(stored[a["at"] : a["at"] + a["bytes"]] for a in _arrays(payload))
        carried = 4 * len(zlib.compress(arrays, 9)) // 3 if arrays else 0
        rows.append((room, len(json.dumps(payload)), len(arrays), carried))
    return sorted((row for row in rows if row[1] > 1000), key=lambda row: -row[1] - row[3])


def _arrays(value):
    """Every array in a payload."""
    if isinstance(value, dict):
        if "dtype" in value and "at" in value:
            yield value
            return
        value = list(value.values())
    for item in value if isinstance(value, list) else ():
        yield from _arrays(item)


def served(run: Path):
    """(address, stop) of a live page."""
    listener = _listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    server = make_server(Page(run), {f"127.0.0.1:{port}"})
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()

    def stop() -> None:
        server.should_exit = True
        thread.join(10)
        listener.close()

    return f"http://127.0.0.1:{port}/", stop


def slider(browser, run: Path) -> None:
    """Frames while the slider is dragged over 12 layers x 12 heads."""
    address, stop = served(run)
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(address)
    page.wait_for_selector("html[data-ready=yes]", timeout=60_000)
    page.wait_for_timeout(1000)
    spent = main_thread(page)
    before = spent()
    frames = page.evaluate(FRAMES)
    each = (spent() - before) / 90
    rates = [
        f"{1000 / frames[name]:.0f} frames/s ({words})" for name, words in (("median", "median"), ("worst", "95 %"))
    ]
    print(f"slider, 12 x 12 heads: {', '.join(rates)}; {1000 * each:.1f} ms of the main thread a step")
    page.close()
    stop()


def attention_adds(run: Path, place: Path, source: Path) -> None:
    """What 144 heads on 128 tokens add to a report."""
    text = source.read_text(encoding="utf-8")
    sizes = [
        qkv.load(run).report(out=place / "wide.html", texts=texts).stat().st_size
        for texts in ([text[:2]], [text[:128]])
    ]
    print(f"144 heads x 128 tokens add {(sizes[1] - sizes[0]) / 1e6:.2f} MB to a report of {sizes[0] / 1e6:.2f} MB")


def long_text(browser, run: Path, source: Path, heads: int, tokens: int) -> None:
    """First picture and hover of that many heads and tokens."""
    address, stop = served(run)
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(address)
    page.wait_for_selector("html[data-ready=yes]", timeout=60_000)
    page.locator("#attention textarea").fill(source.read_text(encoding="utf-8")[:tokens])
    spent = main_thread(page)
    began, answered, drawn = time.perf_counter(), time.process_time(), spent()
    page.locator("#attention textarea").press("Enter")
    page.wait_for_function(
        "(words) => document.querySelector('#attention .figure-title')?.textContent.includes(words)",
        arg=f"{tokens:,} tokens",
        timeout=120_000,
    )
    took = time.perf_counter() - began
    print(f"attention, {heads} heads x {tokens:,} tokens: first picture after {took:.2f} s", end="; ")
    print(f"processor: server {time.process_time() - answered:.2f} s, page {spent() - drawn:.2f} s")
    panel = page.locator("#attention .detail .raster").first
    panel.scroll_into_view_if_needed()
    page.wait_for_timeout(1000)
    box = panel.bounding_box()
    readout = page.locator("#attention .detail .readout").first
    delays = []
    for i in range(20):
        before = readout.inner_text()
        began = time.perf_counter()
        page.mouse.move(box["x"] + box["width"] * (0.1 + 0.03 * i), box["y"] + box["height"] * 0.9)
        while readout.inner_text() == before and time.perf_counter() - began < 2:
            pass
        delays.append(time.perf_counter() - began)
    print(f"  hover: {1000 * sorted(delays)[10]:.0f} ms (median of 20), {1000 * max(delays):.0f} ms (slowest)")
    page.close()
    stop()


if __name__ == "__main__":
    main()
