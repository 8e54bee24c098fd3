"""What a picture costs: the first one waits for no numbers, a step of the slider makes no element."""

import pytest

from qkv.views.report.report import write_report

pytestmark = pytest.mark.browser

STALLED = """() => {
  const Real = DecompressionStream;
  globalThis.DecompressionStream = class {
    constructor(kind) {
      const { readable, writable } = new Real(kind);
      const wait = new Promise((go) => (globalThis.go = go));
      return { writable, readable: readable.pipeThrough(new TransformStream({ start: () => wait })) };
    }
  };
}"""

COUNTED = """() => {
  globalThis.made = { nodes: 0, addresses: 0 };
  new MutationObserver((changes) => changes.forEach((c) => c.addedNodes.forEach((n) => {
    if (n.nodeType === 1 && !n.closest('.readout')) made.nodes += 1 + n.querySelectorAll('*').length;
  }))).observe(document.querySelector('#grid figure'), { childList: true, subtree: true });
  const write = history.replaceState.bind(history);
  history.replaceState = (...words) => ((made.addresses += 1), write(...words));
}"""

DRAG = """async () => {
  const range = document.querySelector('.slider input[type=range]');
  for (let i = 0; i <= Number(range.max); i++) {
    range.value = String(i);
    range.dispatchEvent(new Event('input'));
    await new Promise((done) => requestAnimationFrame(done));
  }
  return [Number(range.max), performance.now()];
}"""


@pytest.fixture(scope="module")
def report(run_folder, tmp_path_factory):
    return write_report(run_folder.folder, tmp_path_factory.mktemp("pace") / "r.html")


def test_the_first_picture_waits_for_no_numbers(browser, report):
    page = browser.new_page()
    page.add_init_script(f"({STALLED})()")
    page.goto(report.as_uri())
    page.wait_for_selector("#answer-loss svg")
    assert page.locator("#answers .in-short dt").count() > 4
    assert page.locator("canvas").count() == 0 and page.evaluate("!document.documentElement.dataset.ready")
    page.evaluate("go()")
    page.wait_for_selector("html[data-ready=yes]")
    assert page.locator("#grid canvas").count() > 2
    ids = page.locator("#answers article").evaluate_all("(all) => all.map((a) => a.id)")
    asked = page.locator("#answers .in-short a").evaluate_all("(all) => all.map((a) => a.hash.slice(1))")
    assert ids == asked
    page.close()


def test_numbers_that_do_not_open_are_told_in_words(browser, report):
    page = browser.new_page()
    page.add_init_script("delete globalThis.DecompressionStream")
    page.goto(report.as_uri())
    page.wait_for_selector("html[data-ready=yes]")
    assert "This browser is too old" in page.locator("main").inner_text()
    page.close()


def test_a_drag_over_every_step_makes_no_element_and_writes_few_addresses(look, report):
    page = look(report)
    page.evaluate("document.querySelector('#grid').scrollIntoView()")
    page.wait_for_timeout(300)
    colours = page.locator("#grid .cells canvas").first
    before = colours.evaluate("(c) => c.toDataURL()")
    page.evaluate(COUNTED)
    began = page.evaluate("performance.now()")
    steps, ended = page.evaluate(DRAG)
    made = page.evaluate("made")
    assert steps > 30 and made["nodes"] < steps, made
    assert made["addresses"] <= 3 + (ended - began) / 300
    page.locator(".slider input[type=range]").press("Home")
    page.wait_for_function("() => document.querySelector('#grid .panel-name').textContent === 'this run, step 0'")
    page.wait_for_function("(old) => document.querySelector('#grid .cells canvas').toDataURL() !== old", arg=before)
    page.wait_for_timeout(400)
    assert "#step=0" in page.url


def test_headings_descend_one_level_at_a_time(look, report):
    page = look(report)
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3, h4')].map((e) => Number(e.tagName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b <= a + 1 for a, b in zip(levels, levels[1:], strict=False))
