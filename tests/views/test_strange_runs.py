"""Pages of runs that are not as usual: words like names of the language, long ones and ones that turn text around; one
update only; stopped long after the last weights were kept; without attention."""

import re
import shutil

import pytest

import qkv
from qkv.folder.run_folder import link
from qkv.views.report.report import read_report, write_report

LONG = "a" * 90
TURNED = "\u202eevil"
WORDS = f"constructor toString __proto__ the {LONG} {TURNED} of hasOwnProperty valueOf "
SIZES = {"d_model": 16, "n_layers": 1, "n_ctx": 32, "batch_size": 4}


@pytest.fixture(scope="module")
def strange(tmp_path_factory):
    """A run of one update on such words."""
    place = tmp_path_factory.mktemp("strange")
    (place / "words.txt").write_text("".join(f"{WORDS}{i % 7} {i % 5}\n" for i in range(300)), encoding="utf-8")
    run = qkv.train(place / "words.txt", out=place / "run", tokenizer="word", steps=1, set=SIZES, report=False)
    return run.report(texts=[WORDS])


@pytest.fixture
def stopped(make):
    """`stopped(step)`: a run whose last kept weights are those of a step long before its last."""

    def until(step):
        folder = make().folder
        (folder / "manifest.json").unlink()
        for place in (folder / "checkpoints").iterdir():
            if int(place.name.removeprefix("step-")) > step:
                shutil.rmtree(place)
        link(folder / f"checkpoints/step-{step:08d}/model.safetensors", folder / "model.safetensors")
        return folder

    return until


@pytest.mark.browser
def test_words_that_a_language_knows_are_shown_as_themselves(look, strange):
    page = look(strange)
    texts = page.evaluate("[...document.querySelectorAll('option, code, button, text')].map((e) => e.textContent)")
    assert {"constructor", "toString", "__proto__", "hasOwnProperty"} <= set(texts)
    assert not [text for text in texts if "native code" in text or "[object" in text]


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_one_long_word_breaks_no_section(look, strange, scheme):
    page = look(strange, width=400, scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    beyond = """() => [...document.querySelectorAll('main svg text')].filter((e) => e.checkVisibility())
      .filter((e) => e.getBoundingClientRect().right > 401 || e.getBoundingClientRect().left < -1)
      .map((e) => e.textContent)"""
    assert page.evaluate(beyond) == [] and page.complaints == []


@pytest.mark.browser
def test_nothing_of_a_run_turns_the_text_around(look, strange):
    page = look(strange)
    text = page.locator("main").inner_text()
    assert "\u202e" not in text and "‹202e›" in page.locator(".sample pre").first.inner_text()
    assert (
        page.locator("#made code, #answers pre").first.evaluate("(e) => getComputedStyle(e).unicodeBidi") == "isolate"
    )


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 400])
def test_bars_of_predictions_share_one_scale(look, strange, width):
    page = look(strange, width=width)
    bars = page.locator(".predictions li").evaluate_all("""(all) => all.map((e) => {
      const [bar, share] = [e.querySelector(".bar-of"), Number(e.querySelector(".amount").textContent)];
      return [bar.getBoundingClientRect().left, bar.getBoundingClientRect().width, share];
    })""")
    assert len(bars) > 4 and len({(round(left), round(wide)) for left, wide, _ in bars}) == 1 and bars[0][1] > 15


@pytest.mark.browser
def test_a_run_of_one_update_has_whole_steps_and_its_one_loss(look, strange):
    page = look(strange)
    assert page.locator(".verdict").inner_text().startswith("Trained for 1 update to predict")
    lowest = """(svg) => {
      const texts = [...svg.querySelectorAll('text')].filter((e) => e.textContent);
      const low = Math.max(...texts.map((e) => e.getBoundingClientRect().top));
      return texts.filter((e) => low - e.getBoundingClientRect().top < 4).map((e) => e.textContent);
    }"""
    assert page.locator("#loss svg").first.evaluate(lowest) == ["0", "1"]
    assert page.locator("#grid figure svg").first.evaluate(lowest) == ["1", "2"]
    assert page.locator("#loss svg circle[r='3']").count() == 1


@pytest.mark.browser
def test_a_page_says_of_which_step_its_last_weights_are(look, stopped, tmp_path):
    folder = stopped(16)
    rows = read_report(folder).rows
    assert (rows.last_step, rows.step) == (16, 1000)
    page = look(write_report(folder, tmp_path / "r.html"))
    said = page.locator("#answer-embeddings .readout").inner_text()
    assert said.endswith("by step 16, the last whose weights were kept."), said
    assert "step 16" in page.locator("#answer-embeddings .strips").inner_text()
    assert page.locator("#matrix .exact .panel p").last.inner_text().startswith("step 16, the last kept")
    assert "step 16, the last kept" in page.locator("#matrices .row-table").inner_text()


@pytest.mark.browser
def test_weights_of_before_training_are_not_shown_as_those_after_it(look, stopped, tmp_path):
    folder = stopped(0)
    rows = read_report(folder).rows
    assert rows.last is None and rows.step == 1000
    page = look(write_report(folder, tmp_path / "r.html"))
    text = page.locator("main").inner_text()
    assert "None of its numbers changed" not in text and "change since the start" not in text
    assert page.locator(".strips, .row-table").count() == 0 and page.complaints == []


@pytest.mark.browser
def test_between_two_steps_half_of_the_way_was_done_by_the_later(look, run_folder, tmp_path):
    path = write_report(run_folder.folder, tmp_path / "r.html")
    text, n = re.subn(r'"half":(\d+)\.0', r'"half":\1.5', path.read_text("utf-8"))
    halves = sorted(int(half) for half in re.findall(r'"half":(\d+)\.5', text))
    assert n > 2
    path.write_text(text, "utf-8")
    shown = look(path).locator("#answer-order svg text").evaluate_all("(all) => all.map((e) => e.textContent)")
    assert {f"{half + 1}" for half in halves} <= set(shown) and f"{halves[0]}.5" not in shown


@pytest.mark.browser
def test_a_model_without_attention_is_not_told_of_queries(look, strange, tmp_path):
    run = qkv.train(
        strange.parents[1] / "words.txt", out=tmp_path / "run", preset="lstm", tokenizer="word", steps=1,
        set=SIZES, report=False,
    )  # fmt: skip
    page = look(run.report())
    assert page.locator("#which-q").count() == 0
    assert "mix_out the output of the LSTM that replaces attention" in page.locator("#forward .lead").inner_text()
    leads = " ".join(page.locator(".lead").all_inner_texts())
    assert "head" not in leads and "q, k" not in leads
    assert page.locator("#grid .figure-title").first.inner_text().startswith("Drift of every matrix at step 1")
    assert look(strange).locator("#which-q").count() == 1


@pytest.mark.browser
def test_numbers_along_an_axis_are_told_apart_and_never_fill_it(look, server):
    page = look(f"http://127.0.0.1:{server}/", offline=False)
    told = page.evaluate("""async () => {
      const { fixed, tick, tickOfSteps, token, visible } = await import("./static/format.js");
      const numbers = [1, 1.05, 1.1, 2.5e13, 0, 0.30000000000000004, -1e-6];
      return [numbers.map(tick), [0, 0.2, 1].map(tickOfSteps), fixed(3e15, 1),
        token("constructor"), token(" \\u202ea"), visible("a\\n\\tb\\u202e\\u200d\\ufffd")];
    }""")
    assert told[0] == ["1", "1.05", "1.1", "2.5e13", "0", "0.3", "−1.0e−6"]
    assert told[1:3] == [["0", "", "1"], "3.00e15"]
    assert told[3:] == ["constructor", "␣‹202e›a", "a\n\tb‹202e›\u200d\ufffd"]
