"""The playground in a real browser: switches do what they say, a link gives the same numbers, nothing is fetched."""

import itertools
import math
import re
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.models.matrices import Catalogue
from qkv.studies.questions import find

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
    broken = look(
        "#task=%3Cb%3E&seed=-1&layers=99&a=W_E:x,rate:nan&b=,,::&step=-1e9&lesson=__proto__&token=%00&matrix=x&head-a=L9&packed=AAAA"
    )
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
def test_paused_and_played_again_it_has_one_loop(look):
    page = look("#task=recall&layers=1&a=&b=&speed=1")
    page.evaluate("() => { for (let i = 0; i < 7; i++) document.querySelector('button.play').click(); }")
    page.wait_for_timeout(1500)
    before = page.evaluate("playground.race.taken")
    page.wait_for_timeout(3000)
    assert page.evaluate("playground.race.playing") and 1 <= page.evaluate("playground.race.taken") - before <= 4


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


def tall(page):
    """All of the page in sight, so that all of it is drawn."""
    page.set_viewport_size({"width": 1280, "height": 5600})
    page.wait_for_timeout(400)
    return page


def norm_of(encodings, gain):
    centred = encodings - encodings.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * gain


@pytest.mark.browser
def test_the_matrices_show_weights_change_and_gradient_of_each(look):
    page = tall(look("#task=recall&a=&b=W_V:freeze"))
    steps(page, 3)
    shown = """(arm) => [...document.querySelectorAll(`#inside .arm-${arm} [data-address]`)].map((e) => {
      const canvas = e.querySelector("canvas");
      const at = canvas.getContext("2d");
      const cells = new Uint32Array(at.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
      return [e.dataset.address, e.querySelector(".thumb-note").textContent, new Set(cells).size]; })"""
    for mode, pick in (
        ("weights", lambda m: m[1]),
        ("change since the start", lambda m: m[1] - m[0]),
        ("gradient", lambda m: m[2]),
    ):
        page.get_by_role("button", name=mode, exact=True).click()
        page.wait_for_timeout(200)
        for arm in "ab":
            mine = matrices(page, arm)
            found = page.evaluate(shown, arm)
            assert {a for a, *_ in found} == {a for a in mine if not a.endswith("gain")}
            for address, note, colours in found:
                wanted = float(np.sqrt((pick(mine[address]) ** 2).mean()))
                said = float(note.split()[0].replace("−", "-"))
                assert said == pytest.approx(wanted, rel=0.06, abs=1e-12), (mode, arm, address)
                frozen = arm == "b" and address.endswith("W_V")
                assert ("frozen" in note) == (frozen and mode != "gradient")
                assert (colours == 1) == (frozen and mode.startswith("change")), (mode, arm, address, colours)


@pytest.mark.browser
def test_heads_are_those_of_the_sentence_that_the_reader_types(look):
    page = tall(look("#layers=1&a=&b=heads:1"))
    assert page.locator("#inside .sentence-tokens .word").count() == 32
    page.get_by_label("sentence to look at").fill("the rabbit")
    page.get_by_label("sentence to look at").blur()
    until(page, "playground.race.seen.a.sentence.length === 10")
    page.wait_for_timeout(200)
    words = page.locator("#inside .sentence-tokens .word").all_inner_texts()
    assert "".join(words[:3] + words[4:]) == "therabbit"
    patterns = np.array(page.evaluate("[...playground.race.seen.a.patterns[0]]")).reshape(4, 10, 10)
    np.testing.assert_allclose(patterns.sum(-1), 1, rtol=1e-12)
    assert not np.triu(patterns, 1).any()
    page.get_by_role("button", name="arm A, layer 0, head 2").click()
    large = page.get_by_role("application", name="arm A, attention of L0.H2")
    large.focus()
    for _ in range(5):  # to row 4, the key in column 0
        page.keyboard.press("ArrowDown")
    told = page.locator("#inside .arm-a .head-large .readout").inner_text()
    assert re.fullmatch(r"r \(4\) gives ([\d.]+) to t \(0\)", told)
    assert float(told.split()[3]) == pytest.approx(patterns[2, 4, 0], abs=0.006)


@pytest.mark.browser
def test_one_row_before_and_after_and_the_gradient_that_reached_it(look):
    page = tall(look("#task=words&layers=1&a=&b=W_E:freeze"))
    assert page.evaluate("playground.race.tokens[playground.race.token]") == "the"
    steps(page, 4)
    page.locator("#inside .strips").first.scroll_into_view_if_needed()
    page.wait_for_timeout(300)
    told = {
        arm: page.locator(f"#inside [aria-label='one row of arm {arm.upper()}'] .readout").inner_text() for arm in "ab"
    }
    assert "None of the numbers in its row has changed" in told["b"] and "Its row moved by" in told["a"]
    start, now, gradient = (m.reshape(-1, 32) for m in matrices(page, "a")["W_E"])
    percent = 100 * np.linalg.norm(now[0] - start[0]) / np.linalg.norm(start[0])
    assert float(re.search(r"moved by ([\d.]+)", told["a"])[1]) == pytest.approx(percent, abs=0.6)
    rows = page.get_by_role("application", name="arm A, all rows")
    rows.focus()
    page.keyboard.press("ArrowRight")
    length = page.locator("#inside [aria-label='one row of arm A'] .readout").inner_text()
    assert length.startswith("the: gradient of length")
    assert float(length.split()[-1].replace("−", "-")) == pytest.approx(np.linalg.norm(gradient[0]), rel=0.01)


@pytest.mark.browser
def test_what_moved_q_is_the_split_of_its_change(look):
    page = tall(look("#task=recall&layers=1&a=&b=W_Q:freeze"))
    steps(page, 6)
    ids = page.evaluate("playground.race.seen.a.sentence")
    for arm in "ab":
        mine = matrices(page, arm)
        x, w = [], []
        for when in (0, 1):
            table, places = (mine[a][when].reshape(-1, 32) for a in ("W_E", "W_pos"))
            x.append(norm_of(table[ids] + places[: len(ids)], mine["L0.norm1.gain"][when]))
            w.append(mine["L0.W_Q"][when].reshape(32, 32))
        dx, dw = x[1] - x[0], w[1] - w[0]
        first = np.linalg.norm(x[0] @ w[0])
        wanted = {"encodings": dx @ w[0], "matrix": x[0] @ dw, "both": dx @ dw, "all": x[1] @ w[1] - x[0] @ w[0]}
        got = page.evaluate("(arm) => playground.race.seen[arm].moved[0]", arm)
        for part, change in wanted.items():
            assert got[part] == pytest.approx(np.linalg.norm(change) / first, rel=1e-9, abs=1e-15), (arm, part)
        assert (got["matrix"] == 0) == (arm == "b") and got["all"] > 0
        page.locator("#inside .moved").first.scroll_into_view_if_needed()
        page.wait_for_timeout(300)
        said = page.locator(f"#inside [aria-label='what moved q of arm {arm.upper()}'] [data-part=all]").inner_text()
        assert float(said) == pytest.approx(got["all"], rel=0.06)


@pytest.mark.browser
@pytest.mark.parametrize("task", ["text", "recall", "sort", "addition", "words"])
def test_every_task_is_learned_from_chance_beside_what_counting_reaches(look, task):
    page = look(f"#task={task}&layers=1&a=&b=&step=25")
    first, last = page.evaluate("[playground.race.curves.a.losses].map((l) => [l[0], l.at(-1)])[0]")
    lines = page.evaluate("playground.race.baselines.map((b) => [b.label, b.nats])")
    assert abs(first - lines[0][1]) < 0.15 and last < first - 0.05
    assert page.evaluate("playground.race.curves.a.losses") == page.evaluate("playground.race.curves.b.losses")
    assert [label for label, _ in lines[:3]] == ["uniform", "unigram", "bigram"]
    assert len(lines) == (3 if task in ("recall", "addition") else 4)  # there longer contexts never come twice
    if len(lines) == 4:
        assert re.fullmatch(r"\d-gram", lines[3][0]) and lines[3][1] < lines[2][1] < lines[1][1] < lines[0][1]
    drawn = page.locator("#race svg text").all_text_contents()
    assert all(any(text.startswith(label) for text in drawn) for label, _ in lines)
    keys = {arm: page.locator(f"#race .key-{arm}").evaluate("(e) => getComputedStyle(e).color") for arm in "ab"}
    strokes = page.locator("#race svg [stroke]").evaluate_all("(all) => all.map((e) => getComputedStyle(e).stroke)")
    assert keys["a"] != keys["b"] and set(keys.values()) <= set(strokes)  # the legend is of the curves' colours


@pytest.mark.browser
def test_reset_seed_and_speed_do_what_they_say(look):
    page = tall(look("#task=recall&layers=1&a=&b=&step=2"))
    first = matrices(page, "a")["W_E"]
    page.get_by_role("button", name="reset").click()
    until(page, "playground.race.taken === 0 && document.documentElement.dataset.ready === 'yes'")
    start, now, _ = matrices(page, "a")["W_E"]
    assert np.array_equal(start, now) and np.array_equal(start, first[0]) and not np.array_equal(now, first[1])
    page.get_by_label("seed", exact=True).fill("7")
    page.get_by_label("seed", exact=True).blur()
    page.wait_for_timeout(100)
    page.wait_for_selector("html[data-ready=yes]")
    assert not np.array_equal(matrices(page, "a")["W_E"][0], start) and "seed=7" in page.url
    page.get_by_label("speed").select_option("5 steps a second")
    began = page.evaluate("performance.now()")
    page.locator("button.play").click()
    page.wait_for_timeout(2400)
    until(page, "document.querySelector('.speed-now').textContent")
    assert float(page.locator(".speed-now").inner_text().split()[0]) <= 5.1
    page.locator("button.play").click()
    until(page, "!playground.race.playing")
    assert page.locator(".speed-now").inner_text() == ""
    seconds = (page.evaluate("performance.now()") - began) / 1000
    assert 2 <= page.evaluate("playground.race.taken") <= 5 * seconds + 1 and "speed=5" in page.url


@pytest.mark.browser
def test_a_link_carries_ones_own_text_and_what_is_looked_at(look):
    page = tall(look("#layers=2&a=&b=heads:1"))
    text = "".join(f"{n} bottles of “grün” on the wall\n" for n in range(300))
    page.locator("details.own summary").click()
    page.locator("details.own textarea").fill(text)
    page.get_by_role("button", name="train on this text").click()
    until(page, "playground.race.tokens.includes('ü') && document.documentElement.dataset.ready === 'yes'")
    page.get_by_role("button", name="gradient", exact=True).click()
    page.get_by_role("button", name="arm B, L1.W_O, gradient").click()
    page.get_by_role("button", name="arm A, layer 1, head 3").click()
    page.get_by_label("One row: W_E of").select_option(label="ü")
    page.get_by_label("sentence to look at").fill("grün")
    page.get_by_label("sentence to look at").blur()
    steps(page, 1)
    again = tall(look("#" + page.url.partition("#")[2]))
    assert again.evaluate("playground.state.text") == text and len(page.url) < 6000
    shown = "[playground.state, playground.race.taken, playground.race.seen.a.sentence, playground.race.token]"
    assert again.evaluate(shown) == page.evaluate(shown)
    assert again.locator("#inside .detail h3").inner_text() == "L1.W_O"
    assert again.get_by_role("button", name="gradient", exact=True).get_attribute("aria-pressed") == "true"
    assert again.get_by_role("button", name="arm A, layer 1, head 3").get_attribute("aria-pressed") == "true"
    assert np.array_equal(matrices(page, "b")["W_U"][1], matrices(again, "b")["W_U"][1])


@pytest.mark.browser
def test_each_lesson_is_a_question_of_qkv_and_shows_what_it_promises(look):
    page = tall(look())
    found = {}
    for chip in page.locator(".lessons .chip").all():
        name = chip.get_attribute("data-lesson")
        assert find(name).name == name
        chip.click()
        page.wait_for_timeout(50)  # from one task to the next: what the last one hid comes back
        page.wait_for_selector("html[data-ready=yes]")
        assert chip.get_attribute("aria-pressed") == "true" and page.locator(".lesson").inner_text().count("\n") >= 3
        page.locator("button.play").click()
        until(page, "playground.race.taken >= 20")
        page.locator("button.play").click()
        until(page, "!playground.race.playing")
        page.wait_for_timeout(300)
        found[name] = {arm: matrices(page, arm) for arm in "ab"}, page.evaluate("playground.race.token")
        if name == "collocation":
            share, beside = (
                page.locator(f"#inside [aria-label='cosines of arm A'] [data-mean={k}]").inner_text()
                for k in ("share", "beside")
            )
            assert float(share.split()[-1]) > float(beside.split()[-1].replace("−", "-")) + 0.1

    def size(lesson, arm, address, part):
        return np.linalg.norm(found[lesson][0][arm][address][part])

    start, now, _ = found["frozen-embeddings"][0]["b"]["W_E"]
    assert np.array_equal(start, now)
    moved = {}
    for arm in "ab":
        start, now, _ = (m.reshape(-1, 32) for m in found["what-is-trained"][0][arm]["W_E"])
        moved[arm] = np.linalg.norm((now - start)[found["what-is-trained"][1]])
        assert all(not np.array_equal(m[0], m[1]) for m in found["what-is-trained"][0][arm].values())
    assert moved["b"] < 0.3 * moved["a"]  # a rare row, by plain SGD and by Adam
    assert size("gradient-path", "b", "W_E", 2) < 0.1 * size("gradient-path", "a", "W_E", 2)
    start, now, _ = found["what-moved-q"][0]["b"]["L0.W_Q"]
    assert np.array_equal(start, now) and page.evaluate("playground.race.seen.b.moved[0].all") > 0


@pytest.mark.browser
def test_no_frame_mixes_two_tasks_and_whoever_turns_a_switch_by_keyboard_stays_at_it(look):
    page = tall(look("#layers=1&a=&b="))
    for task in ("recall", "sort", "clock addition", "words that share contexts", "next character"):
        page.locator("[data-switch=task] select").select_option(label=task)
        page.wait_for_timeout(200)  # frames while the new arms are made
        page.wait_for_selector("html[data-ready=yes]")
    assert page.complaints == []
    page.locator("#switches .arm-b [data-switch=W_Q] select").focus()
    page.keyboard.press("ArrowDown")
    page.wait_for_timeout(100)
    page.wait_for_selector("html[data-ready=yes]")
    assert page.evaluate("document.activeElement.closest('[data-switch]').dataset.switch") == "W_Q"
    page.get_by_role("button", name="arm A, layer 0, head 2").focus()
    page.keyboard.press("Enter")
    page.wait_for_timeout(200)
    assert page.evaluate("document.activeElement.ariaLabel") == "arm A, layer 0, head 2"
    assert page.evaluate("playground.state.b.W_Q") == "freeze"


@pytest.mark.browser
def test_what_is_typed_stays_until_it_is_used_and_a_refusal_goes_with_its_text(look):
    page = look("#layers=1&a=&b=&lesson=frozen-embeddings")
    assert "no longer those of this question" in page.locator(".lesson").inner_text()
    page.locator("details.own summary").click()
    area, button = page.locator("details.own textarea"), page.get_by_role("button", name="train on this text")
    area.fill("😀😁😂🤣😃😄😅😆😉😊" * 25)  # 250 characters, each of two code units
    button.click()
    assert page.locator(".own .wrong").inner_text().startswith("This text has 250 characters; at least 400")
    page.locator("#switches .arm-a summary").click()
    turn(page, "a", "W_Q", "frozen")
    assert area.input_value().startswith("😀😁") and page.locator("#switches .arm-a details").evaluate("(e) => e.open")
    area.fill("ab" * 400)
    assert page.locator(".own .wrong").inner_text() == ""
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.get_by_role("button", name="copy a link").click()
    page.wait_for_function("() => document.querySelector('#keep [role=status]').textContent")
    page.evaluate("() => { location.hash = '#task=recall&layers=1&a=&b=W_V:freeze&step=3000'; }")
    until(page, "document.querySelector('[data-switch=task] select').selectedOptions[0].textContent === 'recall'")
    assert page.evaluate("playground.race.taken") < 3000 and page.complaints == []


@pytest.mark.browser
def test_drawing_again_and_again_keeps_nothing_and_no_curve_leaves_its_frame(look):
    page = tall(look("#layers=1&a=&b="))
    steps(page, 1)
    talk = page.context.new_cdp_session(page)

    def listeners():
        talk.send("HeapProfiler.collectGarbage")
        return talk.send("Memory.getDOMCounters")["jsEventListeners"]

    before = listeners()
    page.evaluate("playground.race.curves.b.losses.push(1e40, NaN)")
    for i in range(6):
        if i == 5:  # after the validation of step 5
            page.evaluate("playground.race.curves.b.validations.push({ step: 6, loss: NaN, accuracy: 0 })")
        steps(page, 1)
        page.wait_for_timeout(200)
    assert "arm B: diverged at step 6 (its loss is not a number)" in page.locator("#race .readout").inner_text()
    assert page.complaints == []
    assert listeners() < before + 20
