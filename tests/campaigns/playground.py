"""How fast the playground trains, how smoothly its page moves, and how large it is: in a real Chromium, network denied.

    python tests/campaigns/playground.py [--seconds 15]

Opens docs/playground/index.html from the disk: both arms of 2 layers, d_model 32, 32 windows of 32 characters a step,
drawing all that is in sight. Prints steps a second (of each arm, side by side) and frames a second of the page while it
plays, with the top of the page in sight and then with the matrices. Needs the extra `dev`.
"""

import argparse
import shutil
from pathlib import Path

from command import machine

PAGE = Path(__file__).parents[2] / "docs" / "playground" / "index.html"

PLAY = """async ([seconds, room]) => {
  document.documentElement.style.scrollBehavior = "auto";
  document.getElementById(room).scrollIntoView();
  const { race } = playground;
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const [began, taken, times] = [performance.now(), race.taken, []];
  while (performance.now() - began < 1000 * seconds) times.push(await frame());
  const gaps = times.slice(1).map((t, i) => t - times[i]).sort((a, b) => a - b);
  return {
    steps: (1000 * (race.taken - taken)) / (performance.now() - began),
    frames: (1000 * gaps.length) / gaps.reduce((a, b) => a + b),
    slow: 1000 / gaps[Math.floor(0.95 * gaps.length)],
  };
}"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15, help="of each measurement")
    given = parser.parse_args()
    from playwright.sync_api import sync_playwright

    print(machine())
    print(f"page: {PAGE.stat().st_size / 1e6:.3f} MB (bound 1)")
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_context(offline=True, viewport={"width": 1280, "height": 900}).new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(PAGE.as_uri())
        page.wait_for_selector("html[data-ready=yes]", timeout=120_000)
        print(f"outside requests: {sum(not url.startswith(('file:', 'data:', 'blob:')) for url in asked)}")
        page.locator("button.play").click()
        while page.evaluate("playground.race.taken") < 20:  # the page's policy forbids what wait_for_function does
            page.wait_for_timeout(100)
        for room, words in (("race", "losses in sight"), ("inside", "matrices in sight")):
            found = page.evaluate(PLAY, [given.seconds, room])
            print(
                f"{words}: {found['steps']:.1f} steps/s of each of two arms (bound 15), "
                f"{found['frames']:.0f} frames/s (bound 30; 95 % of frames above {found['slow']:.0f})"
            )
        browser.close()


if __name__ == "__main__":
    main()
