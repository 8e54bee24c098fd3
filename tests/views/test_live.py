"""The live page in a real browser: every section, against the model's own numbers; nothing else is asked."""

import random
import re
import shutil
import threading

import numpy as np
import pytest
import torch

from qkv.folder.run_folder import RunFolder
from qkv.instruments.registry import MEASURES
from qkv.models import build
from qkv.models.matrices import Catalogue
from qkv.telemetry import AddressRow, Store
from qkv.views.report.packed import to_json
from qkv.views.sections.heads import attention_text

pytestmark = pytest.mark.browser
TEXT = "the day and the night"


@pytest.fixture(scope="module")
def model(run_folder):
    model = build(run_folder.config.model, 1)
    Catalogue(model).load_state({name: torch.tensor(values) for name, values in run_folder.last.items()})
    return model.eval()


@pytest.fixture
def live(look, server):
    return lambda **options: look(f"http://127.0.0.1:{server}/", offline=False, **options)


def number(text):
    return float(text.replace("−", "-").replace("e-", "e-").replace(",", ""))


def read_off(page, panel, row, column, readout, said):
    """What `readout` says of a cell of a raster when the mouse has come to it: a match of the pattern `said`."""
    rows, columns = (int(n) for n in panel.get_attribute("data-cells").split("x"))
    for _ in range(50):  # the page reads out in its own time, and its sections may still be growing
        box = panel.bounding_box()
        x = box["x"] + (column + 0.5) * box["width"] / columns
        page.mouse.move(x, box["y"] + (row + 0.5) * box["height"] / rows)
        if found := re.search(said, readout.inner_text()):
            return found
        page.wait_for_timeout(20)
    raise AssertionError(f"cell {row}, {column} is read out as {readout.inner_text()!r}; expected {said!r}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 380])
def test_all_sections_without_complaint_or_serious_fault(live, server, width, scheme, faults, shot):
    page = live(width=width, scheme=scheme)
    for section in ("answers", "grid", "map", "matrices", "attention", "forward", "words", "made"):
        page.locator(f"#{section}").scroll_into_view_if_needed()
        page.wait_for_timeout(60)
    page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    assert page.complaints == []
    assert [url for url in page.asked if not url.startswith((f"http://127.0.0.1:{server}/", "data:", "blob:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    shot(page, f"live-{width}-{scheme}")
    assert faults(page) == []


def test_fifty_weights_read_off_the_page_are_the_models(live, run_folder):
    page = live(fragment="#step=1000&addr=L1.H2.W_K&section=grid")
    panel = page.locator("#matrix .raster[aria-label='L1.H2.W_K, step 1,000']")
    panel.wait_for()
    panel.scroll_into_view_if_needed()
    expected = run_folder.last["L1.W_K"][:, 24:36]
    draw = random.Random(0)
    for row, column in {(draw.randrange(48), draw.randrange(12)) for _ in range(50)}:
        said = rf"^L1\.H2\.W_K\[{row}, {column}\]: step 0 \S+, step 1,000 (\S+), change \S+$"
        shown = read_off(page, panel, row, column, page.locator("#matrix .readout").first, said)[1]
        assert number(shown) == pytest.approx(float(expected[row, column]), rel=1e-5)
        assert len(re.sub(r"e.*$|\D", "", shown).lstrip("0")) <= 6


def test_attention_on_a_typed_text_is_the_models(live, model, run_folder):
    from playwright.sync_api import expect

    page = live(fragment="#section=attention")
    page.locator(".sentence textarea").fill(TEXT)
    page.keyboard.press("Enter")
    expect(page.locator("#attention .word")).to_have_count(len(TEXT))
    page.locator("#attention .thumb").nth(6).click()
    panel = page.locator("#attention .detail .raster").first
    expect(panel).to_have_attribute("aria-label", re.compile("layer 1 head 2"))
    with torch.no_grad():
        _, record = model.forward_recorded(torch.as_tensor(run_folder.tokenizer.encode(TEXT))[None])
    pattern = record["L1.pattern"][0, 2].numpy()
    panel.scroll_into_view_if_needed()
    draw = random.Random(1)
    for _ in range(50):
        q = draw.randrange(len(TEXT))
        k = draw.randrange(q + 1)
        said = rf"\({q}\) gives ([\d.]+) of its attention to . \({k}\)$"
        shown = read_off(page, panel, q, k, page.locator("#attention .detail .readout").first, said)[1]
        assert float(shown) == pytest.approx(float(pattern[q, k]), abs=0.0075), (q, k)
        assert len(shown.partition(".")[2]) <= 2  # what 256 steps hold


def test_words_of_a_mistake_are_marked_where_they_stand_behind_an_emoji(live):
    text = "😀😀 I love this film, truly 🎉 awful ending"
    words = [{"word": w, "start": text.index(w), "model": 1, "linear": None} for w in ("love", "🎉", "awful")]
    mistake = {"text": text, "words": words, "answer": "good", "probability": 1, "label": "bad"}
    found = {"classes": ["good"], "confusion": [[1]], "n": 1, "n_wrong": 1, "mistakes": [mistake], "words": [],
             "reliability": [{"confidence": 1, "accuracy": 1, "low": 1, "high": 1, "n": 1}]}  # fmt: skip
    shown = live().evaluate(
        """async (found) => {
      const [{ default: view }, { createModel }] = [await import("./static/decisions.js"), await import("./static/model.js")];
      const el = document.body.appendChild(document.createElement("div"));
      view({ el, model: createModel({ decisions: found, host: { can: [] } }) });
      return [el.querySelector(".sample p:last-child").textContent, ...[...el.querySelectorAll(".sample mark")].map((one) => one.textContent)];
    }""",  # noqa: E501
        found,
    )
    assert shown == [text, "love", "🎉", "awful"]


def test_shares_without_the_first_token_are_told_as_what_they_are(live):
    pattern = np.full((1, 4, 4), 0.25, np.float32)
    pattern[0, 2] = [0.9, 0.06, 0.04, 0]
    pattern[0, 3] = [0.9965, 0.0021, 0.0014, 0]  # one and none of 256 steps: they were told as 1.00 and 0.00
    text = to_json(attention_text("abcd", [[pattern]], steps=[0], origin="", causal=False))
    told = """async ([text, query]) => {
      const [{ head }, { squareRoot }] = [await import("./static/head.js"), await import("./static/scale.js")];
      const { together } = await import("./static/dom.js");
      const [el, state] = [document.createElement("div"), { layer: 0, head: 0, query, way: "reads", first: false }];
      document.body.append(el);
      head(together(), el, { text, at: 0, state, note: null, ask: null, scale: squareRoot(1) });
      const said = [el.querySelector(".readout").textContent];
      el.querySelector(".raster").dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft" }));
      return [...said, el.querySelector(".readout").textContent];
    }"""  # what is said of a row, and of its cell left of the diagonal
    page = live()
    of_cell = "c (2) gives 0.6 of its attention to others than the first (0.10) to b (1)"
    assert page.evaluate(told, [text, 2]) == ["c (2) reads b (1) 0.6, c (2) 0.4", of_cell]
    little = "d (3) gives the others only 0.00: too little to compare"
    assert page.evaluate(told, [text, 3]) == [little, little]


def test_forward_shows_the_models_activations_and_a_change_shows(live, model, run_folder):
    from playwright.sync_api import expect

    page = live(fragment="#section=forward")
    page.locator(".sentence textarea").fill(TEXT)
    page.keyboard.press("Enter")
    expect(page.locator(".tokens .word")).to_have_count(len(TEXT))
    page.locator(".sentence select[aria-label=layer]").select_option("L1")
    page.locator(".sentence select[aria-label=head]").select_option("H0")
    panel = page.locator("#forward [data-stage=z] .raster[aria-label='z of layer 1 head 0']")
    panel.wait_for()
    panel.scroll_into_view_if_needed()
    with torch.no_grad():
        _, record = model.forward_recorded(torch.as_tensor(run_folder.tokenizer.encode(TEXT))[None])
    draw = random.Random(2)
    stages = {
        name: record[f"L1.{name}"][0]
        for name in ("x", "q", "k", "v", "scores", "pattern", "z", "attn_out", "resid_post")
    }
    for _ in range(50):
        name = draw.choice(list(stages))
        expected = stages[name] if stages[name].ndim == 2 else stages[name][0]
        row = draw.randrange(len(TEXT))
        column = draw.randrange(row + 1 if name in ("scores", "pattern") else expected.shape[1])
        stage = page.locator(f"#forward [data-stage={name}] .raster")
        stage.evaluate("(e) => e.scrollIntoView({ block: 'center' })")
        said = rf"^{name} of .*: (\S+) · .*{row}, {column}\]$"
        shown = read_off(page, stage, row, column, page.locator("#forward .readout").last, said)[1]
        assert number(shown) == pytest.approx(float(expected[row, column]), rel=1e-5, abs=1e-6), (name, row, column)
        assert len(re.sub(r"e.*$|\D", "", shown).lstrip("0")) <= 6
    change_and_patch(page)


def change_and_patch(page):
    """A change of the model, the backward pass and patching, asked for in the section that shows the forward pass."""
    from playwright.sync_api import expect

    page.locator("#forward summary", has_text="Change it").click()
    page.locator("#forward .chip", has_text="cut the V path of H0").click()
    expect(page.locator("#forward .compared")).to_contain_text("L1.H0.W_V=zero")
    expect(page.locator("#forward .compared")).to_contain_text("L1.H0.W_V: set to 0.")
    panels = page.locator("#forward .compared .panel").evaluate_all("(all) => all.map((e) => e.offsetTop)")
    assert len(panels) == 3 and len(set(panels)) == 1  # before, now and their difference in one row
    for position in (2, 5):
        page.locator(".tokens .word").nth(position).click()
        for name in ("before", "now"):
            told = page.locator(
                "#forward .compared dt", has_text=f"{name}, after {TEXT[position].replace(' ', '␣')} ({position})"
            )
            expect(told).to_be_visible()
    expect(page.locator("#forward [data-stage=z] .raster")).to_be_visible()
    page.locator("#forward .change-form input").fill("L0.W_Q=sing")
    page.locator("#forward .change-form button").click()
    expect(page.locator("#forward [role=status]", has_text="sing")).to_be_visible()
    page.locator(".sentence textarea").fill("a")  # too short: neither the change nor the text is taken
    page.keyboard.press("Enter")
    expect(page.locator(".sentence [role=status]", has_text="expected at least 2")).to_be_visible()
    expect(page.locator("#forward .chip.on")).to_contain_text("L1.H0.W_V=zero")
    page.locator(".slider input[type=range]").focus()
    page.keyboard.press("Home")
    expect(page.locator("#forward .small.keep")).to_contain_text("Weights of step 0.")
    expect(page.locator("#forward .compared")).to_contain_text("L1.H0.W_V=zero")
    page.get_by_role("button", name=re.compile("the way back")).click()
    expect(page.locator("#forward .way-back table")).to_be_visible(timeout=60_000)  # a pass for every matrix
    page.get_by_role("button", name=re.compile("who writes the answer")).click()
    expect(page.locator("#forward .way-back .sentence", has_text="the model prefers")).to_be_visible(timeout=60_000)
    page.locator("#forward textarea").last.fill(TEXT.replace("day", "way"))
    page.locator("#forward form.entry button").last.click()
    expect(page.locator("#forward .figure-title", has_text="What each head writes")).to_be_visible(timeout=60_000)
    expect(page.locator("#forward .chart svg", has_text="d←w")).to_have_count(3)  # stream, attention, MLP
    page.locator("#forward textarea").last.fill(TEXT[1:])
    page.keyboard.press("Enter")
    expect(page.locator("#forward [role=status]", has_text="expected as many")).to_be_visible()
    assert all(" 422 " in complaint for complaint in page.complaints) and len(page.complaints) == 3


def test_the_plane_of_all_rows_is_searched_zoomed_and_colored(live, run_folder):
    page = live(fragment="#step=1000&section=words")
    picture = page.locator("#words canvas[aria-label^='map of']")
    picture.scroll_into_view_if_needed()
    shown = "(c) => c.toDataURL()"
    before = picture.evaluate(shown)
    page.get_by_label("Find tokens").fill("e")
    page.locator("#words [role=status]", has_text="1 token").wait_for()
    count = int(run_folder.counts[run_folder.tokenizer.encode("e")[0]])
    assert page.locator("#words .readout", has_text=f"e, met {count:,} times").count() == 1
    page.get_by_label("Find tokens").fill("")
    page.get_by_role("button", name="by kind").click()
    page.wait_for_timeout(200)
    kinds = picture.evaluate(shown)
    picture.focus()
    page.keyboard.press("+")
    page.wait_for_timeout(200)
    zoomed = picture.evaluate(shown)
    page.keyboard.press("0")
    page.wait_for_timeout(200)
    assert len({before, kinds, zoomed}) == 3 and picture.evaluate(shown) == kinds
    assert page.complaints == []


def test_words_follow_the_slider_and_any_token_can_be_asked(live, run_folder):
    from playwright.sync_api import expect

    page = live(fragment="#step=1000&section=words")
    expect(page.locator("#words .near-columns")).to_contain_text("step 1,000")
    page.locator(".slider input[type=range]").focus()
    page.keyboard.press("Home")
    expect(page.locator("#words .figure-title", has_text="at step 0")).to_be_visible()
    expect(page.locator("#words .near-columns")).to_contain_text(re.compile(r"among all; random directions have 0\.\d"))
    drawn = f"All {len(run_folder.counts)} rows of W_E"
    expect(page.locator("#words figcaption", has_text="of all their variance")).to_contain_text(drawn)
    page.locator(".sentence textarea").fill(TEXT)
    page.keyboard.press("Enter")
    expect(page.locator("#words .context tbody tr")).to_have_count(5)
    page.locator(".sentence textarea").fill("a")  # too short: what is shown can still be asked
    page.keyboard.press("Enter")
    expect(page.locator(".sentence form [role=status]")).to_contain_text("expected at least 2")
    page.locator(".tokens .word").nth(2).click()
    expect(page.locator("#words h4", has_text="e (2)")).to_be_visible()
    assert page.locator("#words select").first.input_value() == str(
        page.evaluate(
            "[...document.querySelectorAll('#words select')[0].options].findIndex((o) => o.textContent === 'e')"
        )
    )
    page.locator(".slider input[type=range]").focus()
    page.keyboard.press("End")
    expect(page.locator("#words .context th").first).to_have_text("layer, step 1,000")
    assert all(" 422 " in complaint for complaint in page.complaints)


def test_a_training_that_has_just_begun_shows_its_losses(look, make, serving):
    run = make(telemetry=False)
    (run.folder / "manifest.json").unlink()
    uniform = float(np.log(run.tokenizer.d_vocab))
    with Store(run.folder / "telemetry.sqlite") as store:  # not one validation, and few batches, the first at the line
        store.set_fact("baselines", {"uniform": uniform})
        for step, loss in enumerate((uniform, 3.8, 3.2, 3.0), start=1):
            store.add_step(step, tokens=step * 4096, loss=loss, lr=0.001, grad_norm=0.5)
        store.flush()
        server = serving(run.folder)
        page = look(f"http://127.0.0.1:{next(server)}/", offline=False)
        page.locator("#loss").scroll_into_view_if_needed()
        page.locator("#loss svg[role=img]").first.wait_for()
        drawn = page.locator("#loss svg path").evaluate_all("(all) => all.map((e) => e.getAttribute('d'))")
        assert drawn and not any("NaN" in (path or "") for path in drawn)
        assert page.complaints == []
        page.close()
        assert list(server) == []


def test_batches_that_the_picture_leaves_out_or_cuts_off_are_told(look, make, serving):
    from playwright.sync_api import expect

    run = make(telemetry=False)
    (run.folder / "manifest.json").unlink()
    with Store(run.folder / "telemetry.sqlite") as store:
        add = lambda step, loss: store.add_step(step, tokens=step * 64, loss=loss, lr=0.001, grad_norm=0.5)  # noqa: E731
        for step in range(1, 5):
            add(step, 4.0 - step / 10)
        store.flush()
        server = serving(run.folder)
        page = look(f"http://127.0.0.1:{next(server)}/", offline=False)
        caption = page.locator("#loss figcaption")
        caption.scroll_into_view_if_needed()
        assert "one batch in" not in caption.inner_text() and "Outside the picture" not in caption.inner_text()
        for step in range(5, 1000):
            add(step, {6: 7.25, 9: 6.5, 12: 0.5}.get(step, 3.0))
        store.flush()
        expect(caption).to_contain_text("then one batch in 2", timeout=20_000)
        expect(caption).to_contain_text(
            "Outside the picture: 2 above it (highest 7.250 nats) and 1 below it (lowest 0.500 nats)"
        )
        assert page.complaints == []
        page.close()
        assert list(server) == []


def test_a_page_that_was_opened_before_the_first_look_gets_its_sections(look, make, serving):
    from playwright.sync_api import expect

    run, two = make(telemetry=False), ["L0.W_Q", "L1.W_K"]
    for name in ("manifest.json", "model.safetensors", "best.safetensors"):
        (run.folder / name).unlink()
    for place in sorted((run.folder / "checkpoints").iterdir())[1:]:
        shutil.rmtree(place)
    with Store(run.folder / "telemetry.sqlite") as store:
        store.register_measures([item.row() for item in MEASURES.values()])
        store.register_addresses(
            [AddressRow(address=a, site="attn", layer=int(a[1]), kind=a[3:], shape=(48, 48)) for a in two]
        )
        store.flush()
        server = serving(run.folder)
        page = look(f"http://127.0.0.1:{next(server)}/", offline=False, fragment="#addr=L1.W_K")
        assert "measured yet" in page.locator("#map .missing").inner_text()
        assert page.locator(".stepper, #loss, #measures").count() == 0
        store.add_values(0, "norm", two, [1.0, 2.0])
        store.flush()
        page.locator("#measures details").first.wait_for(state="attached", timeout=60_000)
        offered = page.locator("#map [aria-label=measure] button")
        expect(offered).to_have_count(1)
        assert page.locator(".stepper").count() == 0
        store.add_step(1, tokens=4096, loss=3.0, lr=0.001, grad_norm=0.5)
        store.add_values(1, "norm", two, [1.5, 2.5])
        store.add_values(1, "drift", two, [0.5, 0.25])
        store.flush()
        expect(page.locator(".step-now")).to_have_text("step 1 of 1", timeout=60_000)
        expect(offered).to_have_count(2)
        page.locator("#loss svg[role=img]").first.wait_for()
        expect(page.locator("#matrix h3 code")).to_have_text("L1.W_K")
        assert page.complaints == []
        page.close()
        assert list(server) == []


def test_the_page_follows_a_run_that_trains(look, make, serving):
    from playwright.sync_api import expect

    run = make()
    (run.folder / "manifest.json").unlink()  # as while it trains
    server = serving(run.folder)
    page = look(f"http://127.0.0.1:{next(server)}/", offline=False)
    expect(page.locator(".step-now")).to_have_text("step 1,000 of 1,000")
    with Store(run.folder / "telemetry.sqlite") as store:
        store.add_step(1032, tokens=1032 * 4096, loss=1.5, lr=0.001, grad_norm=0.5)
        store.add_values(1032, "drift", ["L0.W_Q"], [2.5])
        store.flush()
        expect(page.locator(".step-now")).to_have_text("step 1,032 of 1,032", timeout=60_000)
    page.locator("#grid").scroll_into_view_if_needed()
    expect(page.locator("#grid .figure-title").first).to_contain_text("1,032")
    gone_back = page.evaluate("""async () => {
      const { changed } = await import("./static/live.js");
      const was = { step: 900, evaluations: 7, recorded: 896, snapshot: 512 };
      return [changed(was, { ...was, step: 640, evaluations: 5, recorded: 640 }), changed(was, { ...was, snapshot: 256 }), changed(was, was)];
    }""")  # noqa: E501
    assert gone_back == [
        ["loss", "run", "answers", "ledger", "map"],
        ["grid", "matrices", "samples", "rows", "words"],
        [],
    ]
    assert page.complaints == []
    page.close()
    assert list(server) == []


HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", { get: () => hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_a_page_that_was_opened_in_the_background_hears_that_the_run_has_ended(look, make, serving):
    run = make()
    (run.folder / "manifest.json").unlink()  # as while it trains
    server = serving(run.folder)
    page = look("about:blank", offline=False, ready=False)
    page.add_init_script("Object.defineProperty(document, 'hidden', { get: () => !window.seen })")
    page.goto(f"http://127.0.0.1:{next(server)}/")
    page.wait_for_selector("html[data-ready=yes]")
    page.get_by_text("Training: step 1,000").wait_for()
    RunFolder.open(run.folder).seal({"summary": {"steps": 1000, "stopped_because": "steps"}})
    page.wait_for_timeout(2000)  # the server has seen it
    with page.expect_navigation(timeout=20_000):
        page.evaluate("window.seen = true; document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_selector("html[data-ready=yes]")
    assert page.complaints == []
    page.close()
    assert list(server) == []


def test_tabs_that_nobody_looks_at_keep_no_connection(look, make, serving):
    """A browser has six for each host: with as many streams open the next tab would never come."""
    from playwright.sync_api import expect

    run = make()
    (run.folder / "manifest.json").unlink()  # as while it trains
    server = serving(run.folder)
    address = f"http://127.0.0.1:{next(server)}/"
    pages = [look(address, offline=False)]
    for _ in range(6):
        pages[-1].evaluate(HIDE, True)
        page = pages[0].context.new_page()
        page.goto(address, timeout=60_000)
        page.wait_for_selector("html[data-ready=yes]", timeout=60_000)
        pages.append(page)
    first, last = (page.locator(".live") for page in (pages[0], pages[-1]))
    with Store(run.folder / "telemetry.sqlite") as store:
        store.add_step(1032, tokens=1032 * 4096, loss=1.5, lr=0.001, grad_norm=0.5)
        store.flush()
    expect(last).to_contain_text("Training: step 1,032", timeout=30_000)
    expect(first).to_contain_text("Training: step 1,000")
    pages[0].evaluate(HIDE, False)
    expect(first).to_contain_text("Training: step 1,032", timeout=30_000)
    assert pages[0].complaints == []
    for page in pages:
        page.close()
    assert list(server) == []


def test_a_page_opens_itself_again_for_another_run_in_its_folder(look, make, serving):
    from playwright.sync_api import expect

    first = make()
    server = serving(first.folder)
    page = look(f"http://127.0.0.1:{next(server)}/", offline=False, fragment="#step=64&addr=L2.W_V")
    layers = [page.locator(f".map-kind[data-address='L{layer}.W_V']") for layer in (1, 2)]
    expect(layers[1]).to_have_count(1)
    shutil.rmtree(first.folder.rename(first.folder.with_name("gone")))  # at once: of half a run it opens itself anew
    expect(page.locator(".live")).to_contain_text("no longer in its folder", timeout=20_000)
    make(n_layers=2)
    expect(layers[1]).to_have_count(0, timeout=30_000)
    expect(layers[0]).to_have_count(1, timeout=30_000)
    expect(page.locator(".step-now")).to_have_text("step 1,000 of 1,000", timeout=30_000)
    assert page.complaints == []
    page.close()
    assert list(server) == []


def test_another_run_stands_beside_and_their_difference_is_a_number(look, run_folder, make, browser):
    from qkv.views.live.server import Page
    from qkv.views.live.serving import _listen, make_server

    other = make(seed=11)
    listener = _listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    server = make_server(Page(run_folder.folder, other.folder), {f"127.0.0.1:{port}"})
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    page = look(f"http://127.0.0.1:{port}/", offline=False, fragment="#step=1000&addr=L1.W_in&section=grid")
    page.locator("#grid .choice button", has_text=f"beside {other.folder.name}").click()
    said = page.locator("#grid .readout.two").inner_text()
    shown = re.search(rf"drift (\S+) at step 1,000 · {other.folder.name} (\S+) at step 1,000", said)
    for text, run in ((shown[1], run_folder), (shown[2], other)):
        start, last = run.start["L1.W_in"].astype(float), run.last["L1.W_in"].astype(float)
        assert number(text) == pytest.approx(np.linalg.norm(last - start) / np.linalg.norm(start), rel=5e-3)
    assert re.search(r"difference −?\d\S* *", said) and page.locator("#grid .grid-panel").count() == 2
    page.close()
    server.should_exit = True
    thread.join(10)
    listener.close()


def test_the_tour_leads_to_its_sections(live):
    page = live()
    page.locator(".tour summary").click()
    page.locator(".tour a", has_text="One sentence").click()
    assert "section=forward" in page.url
    there = "() => Math.abs(document.querySelector('#forward').getBoundingClientRect().top) < 200"
    page.wait_for_function(there)  # it scrolls smoothly


def test_model_text_is_text(look, make, serving):
    bad = '</script><img src=x onerror="window.hurt=1">'
    run = make(sample_text=bad, rare="<")
    server = serving(run.folder)
    page = look(f"http://127.0.0.1:{next(server)}/", offline=False)
    page.locator(".sentence textarea").fill(bad)
    page.keyboard.press("Enter")
    page.locator("#attention .word").first.wait_for()
    assert page.evaluate("window.hurt") is None and page.query_selector("main img") is None
    page.close()
    assert list(server) == []


def test_a_long_text_comes_in_tiles(look, make, serving):
    from playwright.sync_api import expect

    run = make(n_ctx=640)
    server = serving(run.folder)
    page = look(f"http://127.0.0.1:{next(server)}/", offline=False)
    text = ("the day and the night, O Romeo. " * 20)[:600]
    page.locator(".sentence textarea").fill(text)
    page.keyboard.press("Enter")
    page.locator("#attention").scroll_into_view_if_needed()
    expect(page.locator("#attention .figure-title").first).to_contain_text("600 tokens", timeout=20_000)
    panel = page.locator("#attention .detail .raster").first
    data = "c.getContext('2d').getImageData(0, 0, c.width, c.height).data"
    page.wait_for_function(f"""() => {{ const c = document.querySelector('#attention .detail .raster canvas');
      return {data}.some((v) => v !== 0); }}""")
    panel.scroll_into_view_if_needed()
    model = build(run.config.model, 1)
    Catalogue(model).load_state({name: torch.tensor(values) for name, values in run.last.items()})
    with torch.no_grad():
        _, record = model.eval().forward_recorded(torch.as_tensor(run.tokenizer.encode(text))[None])
    layer, head = map(int, re.search(r"layer (\d+) head (\d+)", panel.get_attribute("aria-label")).groups())
    pattern = record[f"L{layer}.pattern"][0, head].numpy()
    readout = page.locator("#attention .detail .readout").first
    said = r"\(400\) gives ([\d.]+) of its attention to .*\(80\)"  # cells are 2 x 2 here
    shown = read_off(page, panel, 200, 40, readout, said)[1]
    assert float(shown) == pytest.approx(float(pattern[400, 80]), abs=6e-5)
    page.close()
    assert list(server) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_on_any_shade_can_be_read(live, scheme):
    page = live(scheme=scheme)
    worst = page.evaluate("""async () => {
      const { theme } = await import("./static/theme.js");
      const colours = theme(document.body);
      const light = (colour) => {
        const { r, g, b } = d3.rgb(colour);
        const [x, y, z] = [r, g, b].map((v) => ((v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
        return 0.2126 * x + 0.7152 * y + 0.0722 * z;
      };
      return Math.min(...Array.from({ length: 257 }, (_, i) => {
        const pair = [light(colours.sequential(i / 256)), light(colours.on(i / 256))];
        return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
      }));
    }""")
    assert worst >= 4.5


def test_changes_are_offered_that_the_model_has(look, serving, tmp_path):
    import qkv

    text = tmp_path / "text.txt"
    text.write_text("the cat sees a dog and the dog sees a cat. " * 200, encoding="utf-8")
    sizes = {"d_model": 16, "n_layers": 2, "n_ctx": 32, "batch_size": 4}
    run = qkv.train(text, out=tmp_path / "run", preset="lstm", tokenizer="char", steps=10, set=sizes, report=False)
    server = serving(run.path)
    page = look(f"http://127.0.0.1:{next(server)}/", offline=False)
    assert "an LSTM" in page.locator("#attention .missing").inner_text()
    assert page.locator("#grid .cells").count() > 0 and page.locator("#grid #matrix h3 code").count() == 1
    page.locator(".sentence textarea").fill("the cat sees")
    page.keyboard.press("Enter")
    page.locator("#forward [data-stage=mix_out]").wait_for()
    assert page.locator("#forward [data-stage=q], #forward [data-stage=pattern]").count() == 0
    page.locator("#forward summary", has_text="Change it").click()
    offered = page.locator("#forward .change .chips").first.locator(".chip")
    changes = offered.evaluate_all("(all) => all.map((e) => e.title)")
    assert changes and not any("W_Q" in change or "W_V" in change for change in changes)
    for i, change in enumerate(changes):
        offered.nth(i).click()
        page.locator("#forward .compared .sentence", has_text=f"With {change} the loss").wait_for()
        page.locator("#forward .chip.on").click()
        page.locator("#forward .compared").wait_for(state="detached")
    assert page.complaints == []
    page.close()
    assert list(server) == []


def test_what_comes_out_stands_below_the_layers(live):
    found = live().evaluate("""async () => {
      const { layout } = await import("./static/grid.js");
      const { groupsOf } = await import("./static/map.js");
      const row = ([address, site, layer = null]) => ({ address, site, layer, scope: address.split(".").length > 2 ? address.split(".")[0] : "",
        kind: address.split(".").at(-1), role: "E", shape: [4, 4] });
      const grid = (given) => layout({ rows: given.map(row) }, null, { has: () => true }).rowsOf({ has: () => true }).map((r) => r.label);
      const groups = (given) => groupsOf(given.map(row), false).map((g) => g.name);
      const one = [["W_E", "embed"], ["W_pos", "embed"], ["L0.W_Q", "attn", 0], ["W_transform", "head"], ["W_U", "head"], ["W_cls", "head"]];
      const two = [["enc.W_E", "embed"], ["enc.L0.W_Q", "attn", 0], ["dec.W_E", "embed"], ["dec.L0.W_Q", "attn", 0], ["dec.W_U", "head"]];
      return [grid(one), groups(one), groups(two)];
    }""")  # noqa: E501
    assert found[0] == ["W_E", "W_pos", "L0", "W_transform", "W_U", "W_cls"]
    assert found[1] == ["in", "L0", "out"]
    assert found[2] == ["in", "enc.L0", "in", "dec.L0", "out"]


def test_what_was_read_is_counted_in_tokens_where_a_loss_is_of_texts(live):
    found = live().evaluate("""async () => {
      const header = (await import("./static/header.js")).default;
      const { createModel } = await import("./static/model.js");
      return ["text", "image", "character"].map((unit) => {
        const el = document.createElement("header");
        const values = { run: { unit, n_tokens: 321, facts: [] }, host: { kind: "report" } };
        header({ model: createModel(values), el });
        const row = [...el.querySelectorAll("dl div")].find((e) => e.textContent.includes("321"));
        return row.querySelector("dt").textContent;
      });
    }""")
    assert found == ["tokens read", "tokens read", "characters read"]


def test_what_comes_in_is_said_of_what_the_model_reads(live):
    found = live().evaluate("""async () => {
      const words = (await import("./static/words.js")).default;
      return ["image", "text", "character"].map((unit) => {
        const el = document.createElement("div");
        words({ model: { get: () => ({ unit, sizes: {} }) }, el });
        return el.textContent;
      });
    }""")
    assert "n patches. In the first layer it is the values of a patch times the table W_E" in found[0]
    assert "text" not in found[0] and "token" not in found[0] and "every image" in found[0]
    assert all("n tokens. In the first layer it is a row of the table W_E" in said for said in found[1:])


def test_arms_are_compared_at_the_last_step_that_both_were_looked_at(live):
    found = live().evaluate("""async () => {
      const { arm, difference } = await import("./static/grid.js");
      const { nulls } = await import("./static/measures.js");
      const packed = (rows) => ({ dtype: "float32", shape: [rows.length, rows[0].length], scale: 1, digits: 6, at: 0, buffer: Float32Array.from(rows.flat()).buffer });
      const rows = ["L0.H0.W_Q", "L0.H0.QK", "L0.H1.QK"].map((address) => ({ address }));
      const section = {
        rows, steps: [0, 4, 8], values: { drift: packed([[0, 1, 2], [0, NaN, 6], [0, 5, 7]]) },
        null_steps: [0, 4, 6], null_values: { drift: packed([[0, 0.5, NaN], [0, NaN, 3], [0, 1.5, 3]]) },
      };
      const arms = [false, true].map((isNull) => arm(null, section, "drift", isNull));
      const apart = (address, step) => difference(...arms, address, step);
      return [apart("L0.H0.W_Q", 6), apart("L0.H1.QK", 6), apart("L0.H0.QK", 6), apart("L0.H0.QK", 0), nulls([section], "drift")];
    }""")  # noqa: E501
    assert found[:2] == [[0.5, 4], [3.5, 4]]
    assert found[2][1] is None and found[3] == [0, 0]
    medians = found[4]
    assert medians["step"] == 4 and medians["labels"] == {"n": 2, "value": 1} and medians["run"] == {"n": 2, "value": 3}
