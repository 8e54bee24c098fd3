"""Make the pictures of docs/images again, from a run whose model beats counting: make pictures RUN=runs/demo-1

report.png      the head of the report and its first answers
matrices.png    every matrix beside the random-label control, at the last step that both have
forward.png     one sentence through the model
playground.png  two arms that learn to recall, W_Q frozen in one of them (from docs/playground, not from the run)

The report is written again from the run folder, so that its words are today's. Chromium draws it, without a network.
pictures.json says which run they show, and which sections and fields. Tests compare it with the pictures, with the
README, and with a report that is written today.
"""

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

import qkv
from qkv.errors import QkvError, UserError
from qkv.telemetry import NULL_ARM
from qkv.views.report.report import write_report

HERE = Path(__file__).parent
TEXT = "Return the number of items in the list."
HEIGHT = 1010
RECORD = "pictures.json"
WORDS = """(selectors) => (selectors.length ? selectors.map((s) => document.querySelector(s)) : [document.body])
  .flatMap((part) => [...part.querySelectorAll("nav a, .facts dt, h2")])
  .filter((element) => selectors.length || element.getBoundingClientRect().top < innerHeight)
  .map((element) => element.innerText.trim())"""
"""What a picture says of any run: its sections and fields. Questions, answers and numbers depend on the run."""
RECALL = "#task=recall&layers=2&b=W_Q:freeze&step=250"
STILL = """() => document.querySelectorAll("*").forEach((element) => {
  if (["fixed", "sticky"].includes(getComputedStyle(element).position)) element.style.display = "none"; })"""


def beats_counting(run: Any) -> str:
    """Both losses in words. Raises UserError for a run that does not beat counting, or has nothing to say so by."""
    own, counted = run.loss, (run.summary.get("baselines_nats") or {}).get("ngram")
    if own is None or counted is None:
        raise UserError(f"{run.path} has no loss next to that of an n-gram; expected a finished run on text")
    words = f"{own:.3f} nats per token, the best n-gram {counted:.3f}"
    if own >= counted:
        raise UserError(f"{run.path} does not beat counting ({words}); expected a run that does")
    return words


def scenes(report: str, step: int) -> dict[str, tuple[str, list[str]]]:
    """Name of a picture -> the address of its page, and the elements that it covers; none: the window as it opens."""
    playground = (HERE / "playground" / "index.html").resolve().as_uri() + RECALL
    return {
        "report": (report, []),
        "matrices": (f"{report}#step={step}", ["#grid figure"]),
        "forward": (report, ["#forward .stages"]),
        "playground": (playground, ["#switches", "#race"]),
    }


def last_compared_step(folder: Path) -> int:
    """The last step that the random-label control has, too."""
    with qkv.load(folder).telemetry() as telemetry:
        return telemetry.last_step(NULL_ARM)


def words_of(page: Any, address: str, selectors: list[str]) -> list[str]:
    """Open a page, and return the headings and labels that a picture of it shows."""
    page.set_default_timeout(600_000)  # the playground trains, on a machine that may be busy
    page.goto(address)
    page.wait_for_selector("html[data-ready=yes]")
    return page.evaluate(WORDS, selectors)


def draw(folder: Path, out: Path, scheme: str, width: int) -> dict[str, Any]:
    """Write the four pictures into `out`, in the light or the dark theme, in a window of so many pixels.

    Returns for each its sha256 and its words.
    """
    from playwright.sync_api import sync_playwright

    drawn = {}
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        report = write_report(folder, Path(place).resolve() / "report.html", texts=[TEXT]).as_uri()
        chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        context = browser.new_context(
            viewport={"width": width, "height": HEIGHT}, color_scheme=scheme, offline=True, reduced_motion="reduce"
        )
        for name, (address, selectors) in scenes(report, last_compared_step(folder)).items():
            page, path = context.new_page(), out / f"{name}.png"
            words = words_of(page, address, selectors)
            _picture(page, selectors, path)
            drawn[name] = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "words": words}
        browser.close()
    return drawn


def _picture(page: Any, selectors: list[str], path: Path) -> None:
    """The window as it opens, or what the first element of each selector covers together."""
    if not selectors:
        page.screenshot(path=path)
    else:
        page.evaluate(STILL)
        boxes = [page.locator(selector).first.bounding_box() for selector in selectors]
        left, top = (min(box[side] for box in boxes) for side in ("x", "y"))
        right, bottom = (max(box[a] + box[b] for box in boxes) for a, b in (("x", "width"), ("y", "height")))
        clip = {"x": left - 12, "y": top - 12, "width": right - left + 24, "height": bottom - top + 24}
        page.screenshot(path=path, clip=clip, full_page=True)
    page.close()
    Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)  # a third of the size
    print(f"{path} ({path.stat().st_size / 1000:.0f} kB)")


def main() -> int:
    """Draw them, and print which model they show; 2 for a run that they cannot show."""
    parser = argparse.ArgumentParser(description="make the pictures of docs/images again")
    parser.add_argument(
        "run", type=Path, help="a run whose model beats counting, as `make demo` gives on a quiet machine"
    )
    parser.add_argument("--out", type=Path, default=HERE / "images", help="the folder they are written into")
    parser.add_argument("--dark", action="store_true", help="in the dark theme")
    parser.add_argument("--width", type=int, default=1180, help="of the window, in pixels (1180)")
    args = parser.parse_args()
    try:
        run = qkv.load(args.run)
        known = beats_counting(run)
        args.out.mkdir(parents=True, exist_ok=True)
        drawn = draw(args.run, args.out, "dark" if args.dark else "light", args.width)
        facts = {"loss": run.loss, "ngram": run.summary["baselines_nats"]["ngram"], "steps": run.summary["steps"]}
        record = json.dumps({"run": facts, "pictures": drawn}, indent=1) + "\n"
        (args.out / RECORD).write_text(record, encoding="utf-8")
    except QkvError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    print(f"They show {args.run}: {known}.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
