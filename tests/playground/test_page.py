"""The playground in a real browser: switches do what they say, a link gives the same numbers, nothing is fetched."""

import itertools
import math
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.models.matrices import Catalogue

PAGE = Path(__file__).parents[2] / "docs" / "playground" / "index.html"
LARGEST = 1_000_000
SLOWEST = 3.0  # steps a second with both arms, on a machine that may be busy; benchmarks are for quiet ones

WEIGHTS = """(arm) => { const { made, seen } = playground.race; return Object.fromEntries(made[arm].entries.map((e) =>
  [e.address, ["origin", "weights", "gradients"].map((k) => [...(k === "origin" ? made[arm].origin : seen[arm][k])
    .subarray(e.start, e.start + e.size)])])); }"""

CUT = """[...document.querySelectorAll('select')].filter((e) => e.checkVisibility()).filter((e) => {
  const pen = document.createElement('canvas').getContext('2d');
  pen.font = getComputedStyle(e).font;
  return pen.measureText(e.selectedOptions[0].textContent).width + 30 > e.clientWidth;
}).map((e) => e.selectedOptions[0].textContent)"""


def test_the_page_is_one_small_file():
    text = PAGE.read_text(encoding="utf-8")
    assert len(text.encode()) < LARGEST
    assert "default-src 'none'" in text and "http-equiv" in text


@pytest.fixture
def look(browser):
    """Open the page with the network denied; says what it asked for and what it complained of."""
    contexts = []

    def open_page(fragment="", *, width=1280, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.asked, page.complaints = [], []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("console", lambda m: page.complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.goto(PAGE.as_uri() + fragment)
        page.wait_for_selector("html[data-ready=yes]")
        return page

    yield open_page
    for context in contexts:
        context.close()


def turn(page, arm, switch, label):
    page.locator(f"#switches .arm-{arm} [data-switch={switch}] select").select_option(label=label)
    page.wait_for_selector("html[data-ready=yes]")


def steps(page, n):
    for _ in range(n):
        before = page.evaluate("playground.race.taken")
        page.get_by_role("button", name="one step").click()
        until(page, f"playground.race.taken > {before}")


def until(page, condition, seconds=120):
    end = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        time.sleep(0.05)


def matrices(page, arm):
    """Address -> (start, now, gradient) as arrays."""
    return {a: tuple(np.array(part) for part in parts) for a, parts in page.evaluate(WEIGHTS, arm).items()}


@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (380, "dark")])
def test_nothing_is_asked_nothing_complains_nothing_overflows(look, width, scheme):
    page = look("#task=words&layers=1&a=&b=heads:1&step=2", width=width, scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    page.wait_for_timeout(500)
    assert [url for url in page.asked if not url.startswith((PAGE.as_uri(), "blob:"))] == []
    assert page.complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("canvas").count() > 20
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    faults = axe.Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    bad = [(f["id"], [n["target"] for n in f["nodes"]][:4]) for f in faults if f["impact"] in ("serious", "critical")]
    assert bad == []


HELD = [(kind, "frozen") for kind in ("W_E", "W_Q", "W_K", "W_V", "W_O")]
IDENTITY = [(kind, "identity") for kind in ("W_Q", "W_K", "W_V", "W_O")]


@pytest.mark.browser
def test_held_matrices_stay_bit_for_bit_and_all_others_move(look):
    page = look("#task=recall&a=&b=")
    for kind, label in HELD + IDENTITY:
        turn(page, "b", kind, label)
        steps(page, 2)
        usual, other = matrices(page, "a"), matrices(page, "b")
        for address, (start, now, gradient) in other.items():
            mine = address.endswith(kind)
            assert np.array_equal(start, now) == mine, (kind, label, address)
            assert gradient.any(), address
            if mine and label == "identity":
                assert np.array_equal(now, np.eye(32).ravel())
            else:
                assert np.array_equal(start, usual[address][0])
        turn(page, "b", kind, "trained")


@pytest.mark.browser
def test_switches_of_wiring_do_what_they_say(look):
    page = look("#task=recall&a=&b=")
    patterns = "(arm) => playground.race.seen[arm].patterns.map((p) => [...p])"
    first = page.evaluate(patterns, "a")
    loss = "playground.race.curves.b.validations[0]?.loss"
    steps(page, 1)
    before = page.evaluate(loss)

    turn(page, "b", "shared", "W_K = W_Q")
    assert "L0.W_K" not in matrices(page, "b") and "L0.W_K" in matrices(page, "a")
    assert page.locator("#switches .arm-b [data-switch=W_K] select").is_disabled()
    turn(page, "b", "shared", "own W_K")

    turn(page, "b", "heads", "one")
    assert [4 * len(p) for p in page.evaluate(patterns, "b")] == [len(p) for p in first]
    turn(page, "b", "heads", "four")

    turn(page, "b", "scale", "not divided")  # the scores are sqrt(8) times as large, from the same weights
    sharp, soft = (np.array(page.evaluate(patterns, arm)[0]).reshape(4, 32, 32)[:, -1] for arm in "ba")
    powered = soft ** math.sqrt(8)
    np.testing.assert_allclose(sharp, powered / powered.sum(-1, keepdims=True), rtol=1e-9)
    turn(page, "b", "scale", "divided by √d_k")

    turn(page, "b", "positions", "none")
    assert "W_pos" not in matrices(page, "b")
    turn(page, "b", "positions", "learned")

    turn(page, "b", "skip", "no")
    steps(page, 1)
    assert abs(page.evaluate(loss) - before) > 1e-6
    turn(page, "b", "skip", "yes")
    steps(page, 1)
    assert page.evaluate(loss) == before


@pytest.mark.browser
def test_optimizers_and_rates_do_what_they_say(look):
    page = look("#task=recall&layers=1&a=rate:0.001&b=optimizer:sgd,rate:0.1")
    steps(page, 1)
    for start, now, gradient in matrices(page, "b").values():
        assert np.array_equal(now, start - 0.1 * gradient)
    for start, now, gradient in matrices(page, "a").values():  # the first step of Adam is lr times the sign
        wanted = start - 0.001 * gradient / (np.abs(gradient) + 1e-8)
        np.testing.assert_allclose(now, wanted, rtol=0, atol=1e-12)
    turn(page, "b", "rate", "0.3")
    steps(page, 1)
    for start, now, gradient in matrices(page, "b").values():
        assert np.array_equal(now, start - 0.3 * gradient)


@pytest.mark.browser
def test_a_link_carries_the_state_and_gives_the_same_numbers(look):
    page = look("#task=sort&seed=3&layers=1&a=&b=skip:false")
    steps(page, 3)
    page.locator("a.skip").focus()
    page.keyboard.press("Enter")  # an anchor, not a state
    page.wait_for_timeout(300)
    assert page.evaluate("playground.race.taken") == 3 and "task=sort" in page.url
    again = look("#" + page.url.partition("#")[2])
    assert again.evaluate("playground.race.taken") == 3
    for arm in "ab":
        there, here = matrices(page, arm), matrices(again, arm)
        assert all(np.array_equal(there[a][1], here[a][1]) for a in there)
    broken = look("#task=%3Cb%3E&seed=-1&layers=99&a=W_E:x,rate:nan&b=,,::&step=1e9&lesson=__proto__&token=%00")
    assert broken.complaints == [] and broken.evaluate("playground.state.task") == "text"


@pytest.mark.browser
def test_saved_weights_are_those_shown_under_the_addresses_of_qkv(look, tmp_path):
    page = look("#layers=2&a=&b=positions:none,shared:true&step=2")
    for arm in "ab":
        with page.expect_download() as caught:
            page.locator(f"[data-save={arm}]").click()
        caught.value.save_as(tmp_path / "saved.safetensors")
        saved, shown = load_file(tmp_path / "saved.safetensors"), matrices(page, arm)
        assert saved.keys() == shown.keys()
        for address, (_, now, _) in shown.items():
            assert np.array_equal(saved[address].ravel(), now.astype(np.float32)), address
        if arm == "a":
            sizes = Sizes(d_vocab=len(saved["W_E"]), d_model=32, n_layers=2, n_heads=4, n_ctx=32)
            layout = Layout(positions="learned", norm="layer", mlp="gelu", tied=False)
            ours = Catalogue(build(ModelConfig(kind="CausalLM", sizes=sizes, layout=layout), 0)).state()
            assert {a: v.shape for a, v in saved.items()} == {a: tuple(v.shape) for a, v in ours.items()}


@pytest.mark.browser
def test_every_lesson_opens_its_race_and_leads_to_an_answer(look):
    page = look()
    chips = page.locator(".lessons .chip")
    assert chips.count() == 5
    for i in range(5):
        chips.nth(i).click()
        page.wait_for_selector("html[data-ready=yes]")
        steps(page, 1)
        link = page.locator(".lesson a").get_attribute("href")
        assert (PAGE.parent / link).exists(), link
        uniform = page.evaluate("playground.race.baselines[0].nats")
        for arm in "ab":
            assert abs(page.evaluate(f"playground.race.curves.{arm}.losses[0]") - uniform) < 0.15
    assert page.complaints == []


@pytest.mark.browser
def test_it_plays_and_pauses_by_keyboard_at_a_fair_speed(look):
    page = look()
    page.locator("button.play").focus()
    page.keyboard.press("Enter")
    until(page, "playground.race.taken >= 30")
    began, at = time.monotonic(), page.evaluate("playground.race.taken")
    until(page, f"playground.race.taken >= {at + 60}")
    speed = (page.evaluate("playground.race.taken") - at) / (time.monotonic() - began)
    frames = page.evaluate(
        "new Promise((done) => { let n = 0; const end = performance.now() + 2000;"
        "const tick = (t) => (n++, t < end ? requestAnimationFrame(tick) : done(n / 2));"
        "requestAnimationFrame(tick); })"
    )
    page.keyboard.press("Enter")
    until(page, "!playground.race.playing")
    page.wait_for_timeout(300)
    stopped = page.evaluate("playground.race.taken")
    page.wait_for_timeout(500)
    assert page.evaluate("playground.race.taken") == stopped
    print(f"{speed:.1f} steps/s with both arms at 2 layers, d_model 32, 32 x 32 tokens; {frames:.0f} frames/s")
    assert speed > SLOWEST
    for arm, (first, last) in itertools.product("ab", [(0, -1)]):
        curve = page.evaluate(f"playground.race.curves.{arm}.losses")
        assert curve[last] < 0.8 * curve[first]


@pytest.mark.browser
def test_a_text_of_ones_own_is_trained_on_and_a_short_one_refused(look):
    page = look("#layers=1&a=&b=")
    page.locator("details.own summary").click()
    area, button = page.locator("details.own textarea"), page.get_by_role("button", name="train on this text")
    area.fill("too short")
    button.click()
    assert "9 characters; at least 400" in page.locator(".own .wrong").inner_text()
    area.fill("<b>abc & 'def'</b> " * 40)
    button.click()
    page.wait_for_selector("html[data-ready=yes]")
    steps(page, 1)
    assert page.evaluate("playground.race.tokens.join('')") == "".join(sorted(set("<b>abc & 'def'</b> ")))
    assert page.locator("#play b b").count() == 0


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 380])
def test_who_starts_it_sees_the_race_and_no_choice_is_cut(look, width):
    page = look("#task=words", width=width)
    page.evaluate("document.documentElement.style.scrollBehavior = 'auto'")
    page.locator("button.play").click()
    until(page, "document.querySelector('#race svg').getBoundingClientRect().top < 0.7 * innerHeight")
    page.locator("button.play").click()
    cut = page.evaluate(CUT)
    assert cut == [], cut
    names = page.evaluate("[...document.querySelectorAll('section[aria-label]')].map((e) => e.ariaLabel)")
    assert len(names) == len(set(names)) > 6
