"""What a stranger sees: answers first, no text cut or covered, no panel empty, every scale with its numbers."""

import pytest

from qkv.views.report.report import write_report

pytestmark = pytest.mark.browser
SLIDER = 70
"""Pixels at the bottom of the screen that the slider covers."""

FAULTS = """() => {
  const found = [], edge = document.documentElement.clientWidth + 1;
  const seen = (e) => e.checkVisibility();
  const covers = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3;
  for (const svg of document.querySelectorAll('main svg')) {
    const texts = [...svg.querySelectorAll('text')].filter((e) => e.textContent.trim() && seen(e));
    const boxes = texts.map((e) => e.getBoundingClientRect());
    boxes.forEach((a, i) => {
      if (a.right > edge || a.left < -1) found.push(`outside the page: ${texts[i].textContent}`);
      for (let j = i + 1; j < boxes.length; j++)
        if (covers(a, boxes[j])) found.push(`covered: ${texts[i].textContent} | ${texts[j].textContent}`);
    });
  }
  for (const e of document.querySelectorAll('main *')) {
    if (e.closest('svg') || e.children.length || !e.textContent.trim() || !seen(e)) continue;
    const style = getComputedStyle(e);
    if (['hidden', 'clip'].includes(style.overflowX) && e.scrollWidth > e.clientWidth + 1)
      found.push(`cut: ${e.textContent.slice(0, 40)}`);
    if (!e.closest('.scroll, nav') && e.getBoundingClientRect().right > edge)
      found.push(`beyond the edge: ${e.textContent.slice(0, 40)}`);
  }
  for (const ticks of document.querySelectorAll('.bar-ticks, .map-axis, .cell-heads:not(.slanted)')) {
    const boxes = [...ticks.children].filter(seen).map((e) => e.getBoundingClientRect());
    boxes.slice(1).forEach((b, i) => { if (b.left < boxes[i].right - 1) found.push(`ticks: ${ticks.textContent}`); });
  }
  for (const canvas of document.querySelectorAll('main canvas')) {
    if (!seen(canvas)) continue;
    const section = canvas.closest('figure, .detail, .panel, .stage, .head-detail, section');
    if (!section.querySelector('.bar-ticks')) found.push(`no scale: ${canvas.parentElement.ariaLabel}`);
  }
  return [...new Set(found)];
}"""


INKED = """(c) => c.getContext('2d').getImageData(0, 0, c.width, c.height).data
  .filter((v, i) => i % 4 === 3 && v).length"""


@pytest.fixture(scope="module")
def report(run_folder, tmp_path_factory):
    place = tmp_path_factory.mktemp("looks")
    return write_report(run_folder.folder, place / "r.html", texts=["the day and the night", "O Romeo, Romeo!"])


@pytest.mark.parametrize("width", [1280, 380])
def test_no_text_is_cut_or_covered_and_every_picture_has_a_scale(look, report, width):
    page = look(report, width=width)
    page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    page.wait_for_timeout(300)
    assert page.evaluate(FAULTS) == []


def test_the_first_screen_answers_in_sentences_with_numbers(look, report):
    page = look(report)
    rows = page.locator("#answers .in-short > div").evaluate_all(
        "(all) => all.map((e) => [e.getBoundingClientRect().bottom, e.children[1].textContent])"
    )
    seen = [text for bottom, text in rows if bottom <= 900 - SLIDER]
    assert len(seen) >= 5, rows
    assert all(text.rstrip().endswith((".", "”", "…")) for text in seen), seen
    assert sum(any(c.isdigit() for c in text) for text in seen) >= 5, seen
    phone = look(report, width=380)
    first = phone.locator("#answers .in-short > div").first.bounding_box()
    assert first["y"] + first["height"] <= 900 - SLIDER


def test_the_difference_is_taken_at_the_last_step_of_both(look, report, run_folder):
    from qkv.telemetry import NULL_ARM, RUN_ARM, Telemetry

    page = look(report)
    panel = page.locator("#grid .grid-panel").nth(2)
    assert panel.locator(".panel-name").inner_text() == "difference at step 64"
    assert panel.locator("canvas").evaluate(INKED) > 1000
    with Telemetry(run_folder.folder / "telemetry.sqlite") as telemetry:
        at_64 = [telemetry.grid("drift", arm=arm) for arm in (RUN_ARM, NULL_ARM)]
        gaps = [
            abs(float(run.value[i, list(run.step).index(64)] - null.value[i, list(null.step).index(64)]))
            for run, null in [at_64]
            for i, address in enumerate(run.addresses)
            if address.rpartition(".")[2].startswith("W_")
        ]
    scale = page.locator("#grid .bar").nth(1)
    assert scale.locator(".bar-label").inner_text() == "difference in drift"
    ends = [float(t.replace("−", "-").strip("≤≥ ")) for t in scale.locator(".bar-ticks span").all_inner_texts()]
    assert ends[0] == -ends[-1] and 0 < ends[-1] <= max(gaps) * 1.05


def test_words_open_on_words(look, report):
    page = look(report)
    names = page.locator("#words .controls select").evaluate_all(
        "(all) => all.map((e) => e.selectedOptions[0].textContent)"
    )
    assert all(name.isalpha() for name in names), names
    assert page.locator("#words label + select").evaluate("(e) => e.selectedOptions[0].textContent").isalpha()


def test_formulas_stand_in_a_line_each_and_open(look, report):
    page = look(report)
    lines = page.locator("#measures details")
    assert lines.count() >= 4
    assert all(box < 120 for box in lines.evaluate_all("(all) => all.map((e) => e.getBoundingClientRect().height)"))
    lines.first.locator("summary").click()
    assert lines.first.locator(".formula").is_visible()
