"""What a stranger sees: answers first, no text cut or covered, no panel empty, every scale with its numbers."""

import re

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

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


def test_two_runs_have_no_colored_difference_and_its_number_is_that_of_the_last_step_of_both(look, report, run_folder):
    from qkv.telemetry import NULL_ARM, RUN_ARM, Telemetry

    page = look(report, fragment="#step=1000&addr=L1.W_in")
    names = page.locator("#grid .panel-name").all_inner_texts()
    assert names == ["this run, step 1,000", "random-label control, step 64, its last"]
    assert page.locator("#grid figure").first.locator(".bar").count() == 1
    assert "It has no color" in page.locator("#grid figcaption").first.inner_text()
    with Telemetry(run_folder.folder / "telemetry.sqlite") as telemetry:
        run, null = (telemetry.grid("drift", arm=arm) for arm in (RUN_ARM, NULL_ARM))
    at = [float(arm.value[arm.addresses.index("L1.W_in"), list(arm.step).index(64)]) for arm in (run, null)]
    said = re.search(r"difference (\S+) at step 64", page.locator("#grid .readout.two").inner_text())
    assert float(said[1].replace("−", "-")) == pytest.approx(at[0] - at[1], rel=5e-3)


def test_two_steps_of_a_run_have_a_colored_difference_on_a_scale_of_its_own(look, report, run_folder):
    page = look(report, fragment="#step=1000&addr=L1.W_in")
    page.locator("#grid .choice button", has_text="beside another step").click()
    assert page.locator("#grid .panel-name").last.inner_text() == "difference at step 1,000"
    assert page.locator("#grid .grid-panel canvas").last.evaluate(INKED) > 1000
    scale = page.locator("#grid .bar").nth(1)
    assert scale.locator(".bar-label").inner_text() == "difference in drift"
    ends = [float(t.replace("−", "-").strip("≤≥ ")) for t in scale.locator(".bar-ticks span").all_inner_texts()]
    assert ends[0] == -ends[-1] < 0


# A canvas's smallest and largest gray (0 to 255) among cells of its own: how much of its scale a thumbnail uses.
SPAN = """(canvas) => {
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const gray = [];
  for (let i = 0; i < data.length; i += 4) gray.push((data[i] + data[i + 1] + data[i + 2]) / 3);
  return Math.max(...gray) - Math.min(...gray);
}"""


def test_no_thumbnail_of_a_weight_is_blank_and_one_scale_for_all_is_a_switch(look, make, tmp_path):
    run = make()
    kept = []
    for path in run.folder.rglob("model.safetensors"):
        kept.append({name: w * (40 if name == "W_U" else 1) for name, w in load_file(path).items()})
        save_file(kept[-1], path)
    page = look(write_report(run.folder, tmp_path / "r.html"))
    thumbs = page.locator("#matrices .thumb canvas")
    page.locator("#matrices .choice button", has_text="size of the weights").click()
    assert min(canvas.evaluate(SPAN) for canvas in thumbs.all()) > 100
    tops = dict(text.split("\n1 = ") for text in page.locator("#matrices .thumb-kind").all_inner_texts())
    assert "a scale for each kind" == page.locator("#matrices .choice button[aria-pressed=true]").last.inner_text()
    for kind in ("W_U", "W_Q"):
        sizes = np.concatenate([np.abs(w).ravel() for one in kept for name, w in one.items() if name.endswith(kind)])
        assert float(tops[kind].split()[0]) == pytest.approx(np.quantile(sizes, 0.99), rel=0.35), kind
    assert float(tops["W_U"].split()[0]) > 10 * float(tops["W_Q"].split()[0])
    legend = page.locator("#matrices .bar").first
    assert "(1: the number under each name)" in legend.inner_text()
    page.locator("#matrices .choice button", has_text="one scale for all").click()
    assert page.locator("#matrices .thumb-top").all_inner_texts() == [""] * len(tops)
    spans = {
        c.evaluate("(c) => c.parentElement.getAttribute('aria-label').split(',')[0]"): c.evaluate(SPAN)
        for c in thumbs.all()
    }
    assert spans["L0.W_Q"] < 60 < spans["W_U"]


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
