"""The report in a real browser: no request, no error, everything in reach, numbers as in the payload."""

import dataclasses
import json
import re

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from qkv.telemetry import Telemetry
from qkv.views.report.report import write_report
from qkv.views.sections import forward as forward_section

pytestmark = pytest.mark.browser
BAD = '</script><img src=x onerror="window.hurt=1"><b>bold</b>'
SIZES = {"wide": 1280, "phone": 380}


@pytest.fixture(scope="module")
def report(run_folder, tmp_path_factory):
    place = tmp_path_factory.mktemp("report")
    return write_report(run_folder.folder, place / "r.html", texts=["the day and the night", "O Romeo, Romeo!"])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", SIZES.values(), ids=SIZES)
def test_no_request_no_complaint_no_overflow(look, report, width, scheme):
    page = look(report, width=width, scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    page.wait_for_timeout(200)
    assert [url for url in page.asked if url.split("#")[0] != report.as_uri()] == []
    assert page.complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_every_section_is_there_and_drawn(look, report):
    page = look(report)
    assert [h.inner_text() for h in page.query_selector_all("h1")] == ["shakespeare-1"]
    for section in ("loss", "grid", "map", "matrices", "attention", "made", "measures"):
        assert page.query_selector(f"#{section} h2"), section
    assert page.query_selector(".section .missing") is None and page.query_selector("#play") is None  # another layout
    for chart in (
        "#loss svg path",
        "#grid canvas",
        "#grid svg path",
        "#map canvas",
        "#matrices canvas",
        "#attention canvas",
    ):
        assert page.query_selector(chart), chart
    data = "c.getContext('2d').getImageData(0, 0, c.width, c.height).data"
    blank = f"(c) => {{ const d = {data}; return d.every((v) => v === d[0]); }}"
    canvases = page.query_selector_all("canvas")
    assert len(canvases) > 40 and not any(canvas.evaluate(blank) for canvas in canvases)


def test_slider_moves_map_and_snapshot_and_address(look, report):
    from playwright.sync_api import expect

    page = look(report)
    slider = page.locator(".slider input[type=range]")
    assert slider.get_attribute("aria-valuetext") == "step 1,000"
    page.locator("#matrices").scroll_into_view_if_needed()
    slider.focus()
    page.keyboard.press("Home")
    assert page.locator(".step-now").inner_text() == "step 0 of 1,000"
    expect(page.locator(".snapshot-title")).to_have_text("Snapshot of step 0")
    assert "#step=0" in page.url
    for _ in range(12):
        page.keyboard.press("ArrowRight")
    assert page.locator(".step-now").inner_text() == "step 128 of 1,000"
    expect(page.locator(".snapshot-title")).to_have_text("Snapshot of step 64")


def test_play_runs_to_the_end_and_can_be_paused(look, report):
    from playwright.sync_api import expect

    page = look(report)
    play, now = page.locator("button.play"), page.locator(".step-now")
    play.click()
    expect(now).not_to_have_text("step 1,000 of 1,000")
    play.click()
    stopped_at = now.inner_text()
    page.wait_for_timeout(500)
    assert now.inner_text() == stopped_at
    play.click()
    expect(now).to_have_text("step 1,000 of 1,000", timeout=30_000)
    expect(play).to_have_attribute("aria-label", "play the training")


def test_a_link_restores_the_view(look, report):
    page = look(report, fragment="#step=64&addr=L2.W_V")
    assert page.locator(".step-now").inner_text() == "step 64 of 1,000"
    assert page.locator("#matrix h3 code").first.inner_text() == "L2.W_V"
    assert page.locator(".map-kind.on").get_attribute("data-address") == "L2.W_V"


def test_map_reads_the_recorded_number_with_the_keyboard(look, report, run_folder):
    page = look(report)
    panel = page.locator("#map .raster").nth(2)
    assert panel.get_attribute("aria-label") == "drift of L0, this run"
    panel.focus()
    page.keyboard.press("ArrowRight")
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    said = page.locator("#map .readout").inner_text()
    step = run_folder.steps[10]
    assert said.startswith(f"L0.W_O, step {step}: drift this run "), said
    with Telemetry(run_folder.folder / "telemetry.sqlite") as telemetry:
        for arm, name in ((0, "this run"), (1, "random-label control")):
            grid = telemetry.grid("drift", arm=arm)
            value = grid.value[grid.addresses.index("L0.W_O"), list(grid.step).index(step)]
            shown = float(re.search(rf"{name} ([\d.]+)", said)[1])
            assert shown == pytest.approx(value, rel=5e-3)


def test_exact_weights_are_the_models(look, report, run_folder):
    page = look(report, fragment="#step=1000&addr=L1.W_K")
    panel = page.locator("#matrix .raster[aria-label='exact weights, step 1,000']")
    panel.focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    said = page.locator("#matrix .exact .readout").inner_text().replace("−", "-")
    row, column = map(int, re.match(r"L1\.W_K\[(\d+), (\d+)\]", said).groups())
    shown = [float(text) for text in re.search(r"start (\S+), step 1,000 (\S+)$", said).groups()]
    expected = [run_folder.start["L1.W_K"][row, column], run_folder.last["L1.W_K"][row, column]]
    assert shown == pytest.approx(expected, rel=1e-5)


def test_attention_walks_over_the_tokens(look, report):
    page = look(report)
    word = page.locator("#attention .word.on")
    assert word.count() == 1
    word.focus()
    page.keyboard.press("Home")
    assert page.locator("#attention .detail .readout").inner_text().startswith("t (0) reads t (0) 1")
    page.locator("#attention .choice button", has_text="who reads it").click()
    assert "is read by" in page.locator("#attention .detail .readout").inner_text()
    page.locator(".sentence select[aria-label=text]").select_option(label="“O Romeo, Romeo!”")
    assert page.locator("#attention .word").count() == len("O Romeo, Romeo!")


def test_even_attention_shows_no_more_entropy_than_there_can_be(look, make, tmp_path):
    run, text = make(), "the day " * 7 + "the"
    for path in run.folder.rglob("model.safetensors"):
        save_file(load_file(path) | {"L0.W_Q": np.zeros((48, 48), np.float32)}, path)
    page = look(write_report(run.folder, tmp_path / "r.html", texts=[text]), fragment="#addr=L0.H1.pattern")
    page.locator("#attention .detail .margins .raster").nth(1).focus()
    for _ in range(len(text)):
        page.keyboard.press("ArrowRight")
    said = page.locator("#attention .detail .readout").inner_text()
    expected = f"{np.log(len(text)):.3g}"
    assert f"({len(text) - 1}): entropy {expected} nats; even attention would have {expected}" in said
    assert "two digits" not in page.locator("#attention .detail .margins").inner_text()


def test_a_model_that_sees_both_sides_says_what_stands_at_a_token_and_not_after_it(
    look, report, make, tmp_path, monkeypatch
):
    said = "#forward .answer-box h3"
    assert look(report).locator(said).text_content().startswith("after ")
    whole = forward_section._stack
    monkeypatch.setattr(forward_section, "_stack", lambda *given: dataclasses.replace(whole(*given), causal=False))
    page = look(write_report(make().folder, tmp_path / "r.html", texts=["the day and the night"]))
    assert page.locator(said).text_content().startswith("at ")


def test_strings_of_a_run_are_shown_as_text(look, make, tmp_path):
    run = make(sample_text=BAD, rare="<")
    page = look(write_report(run.folder, tmp_path / "r.html", texts=[BAD]))
    assert page.evaluate("window.hurt") is None
    assert page.query_selector("main img, main b:text('bold')") is None
    assert BAD in page.locator("#answers, main").first.inner_text()
    assert page.complaints == []


def test_a_folder_without_telemetry_says_what_is_missing(look, make, tmp_path):
    run = make(telemetry=False)
    page = look(write_report(run.folder, tmp_path / "r.html"))
    assert "--watch off" in page.locator("#map .missing").inner_text()
    assert page.query_selector("#matrices canvas") and page.complaints == []


def test_another_version_of_the_payload_is_refused_in_words(look, report, tmp_path):
    text = report.read_text("utf-8")
    data = re.search(r'id="qkv-payload">(.*?)</script>', text, re.DOTALL)[1]
    other = json.dumps({**json.loads(data), "version": 99}).replace("<", "\\u003c")
    path = tmp_path / "other.html"
    path.write_text(text.replace(data, other), "utf-8")
    page = look(path, ready=False)
    assert "version 99" in page.locator("main").inner_text()


def test_a_link_names_a_head_in_every_section(look, report):
    page = look(report, fragment="#step=64&addr=L2.H3.QK")
    assert page.locator("#attention .detail h3 code").inner_text() == "L2.H3"
    page.locator("#attention .thumb").nth(6).click()
    assert page.locator("#attention .detail h3 code").inner_text() == "L1.H2"
    assert "addr=L1.H2.pattern" in page.url
    page.reload()
    page.wait_for_selector("html[data-ready=yes]")
    assert page.locator("#attention .detail h3 code").inner_text() == "L1.H2"
    assert page.locator(".step-now").inner_text() == "step 64 of 1,000"


def test_a_link_to_a_step_that_was_not_recorded_gives_the_last_before_it(look, report):
    page = look(report, fragment="#step=500&addr=L1.W_V")
    assert page.locator(".step-now").inner_text() == "step 480 of 1,000"
    page.locator("#answers .in-short a", has_text="Is the loss good?").click()
    assert page.url.endswith("#step=480&addr=L1.W_V&section=answer-loss")
    page.reload()
    page.wait_for_selector("html[data-ready=yes]")
    page.wait_for_function("() => Math.abs(document.querySelector('#answer-loss').getBoundingClientRect().top) < 200")
    assert page.url.endswith("#step=480&addr=L1.W_V&section=answer-loss")


def test_a_link_opened_in_the_same_tab_changes_the_view(look, report):
    from playwright.sync_api import expect

    page = look(report, fragment="#step=64&addr=L2.H3.QK")
    page.evaluate("() => { location.hash = '#step=131&addr=L1.H2.pattern&section=attention' }")
    expect(page.locator(".step-now")).to_have_text("step 128 of 1,000")
    assert page.locator("#attention .detail h3 code").inner_text() == "L1.H2"
    page.wait_for_function("() => Math.abs(document.querySelector('#attention').getBoundingClientRect().top) < 200")
    page.wait_for_function("() => location.hash === '#step=128&addr=L1.H2.pattern&section=attention'")


def test_a_link_names_a_matrix_of_a_run_that_was_not_watched(look, make, tmp_path):
    page = look(write_report(make(telemetry=False).folder, tmp_path / "r.html"), fragment="#step=64&addr=L0.W_in")
    pressed = page.locator("#matrices .thumb[aria-pressed=true]")
    assert pressed.count() == 1 and pressed.get_attribute("aria-label").startswith("L0.W_in,")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("#loss figure", ["Loss while training", "best n-gram"]),
        ("#grid figure", ["Drift of every matrix and head", "this run, step 1,000", "W_Q", "L0"]),
        ("#map figure", ["Every matrix, every recorded step", "random-label control"]),
        ("#matrix .exact .panel", ["start", "one cell", "0"]),
        ("#attention figure", ["3 layers × 4 heads", "attention, square-root scale", "0.25"]),
        ("#attention .detail", ["token by token", "entropy of each token's row"]),
    ],
)
def test_a_picture_is_taken_away_with_its_words_and_its_scale(look, report, place, words):
    import io
    from xml.etree import ElementTree

    from PIL import Image

    page = look(report)
    host = page.locator(place).first
    host.scroll_into_view_if_needed()
    kept = {}
    for kind in ("SVG", "PNG"):
        with page.expect_download() as waiting:
            host.locator(f"[data-keep={kind}]").first.click()
        kept[kind] = waiting.value.path().read_bytes()
        assert re.fullmatch(rf"[\w.-]+\.{kind.lower()}", waiting.value.suggested_filename)
    picture = ElementTree.fromstring(kept["SVG"])
    text = " ".join(node.text or "" for node in picture.iter("{http://www.w3.org/2000/svg}text"))
    assert [word for word in words if word not in text] == []
    images = list(picture.iter("{http://www.w3.org/2000/svg}image"))
    assert len(images) == host.locator("canvas:visible").count()
    assert all(image.get("href").startswith("data:image/png") for image in images)
    assert "SVG" not in text.split()
    image = Image.open(io.BytesIO(kept["PNG"])).convert("RGB")
    assert image.size == (int(picture.get("width")) * 2, int(picture.get("height")) * 2)
    assert len(image.getcolors(1 << 24)) > 20
    assert page.complaints == []


@pytest.mark.parametrize(
    ("label", "name"), [("One row: W_E of", "One-row-W_E-of"), ("Neighbours in W_E of", "Neighbours-in-W_E-of")]
)
def test_a_picture_of_one_token_names_it_alone(look, report, label, name):
    page = look(report)
    choice = page.get_by_label(label)
    choice.select_option("t")
    with page.expect_download() as waiting:
        page.locator("figure", has=choice).locator("[data-keep=SVG]").click()
    assert waiting.value.suggested_filename == f"{name}-t.svg"
    assert ">t</text>" in waiting.value.path().read_text("utf-8")


def test_what_was_chosen_with_the_keyboard_keeps_the_focus(look, report):
    page = look(report)
    focused = "[document.activeElement.ariaLabel, document.activeElement.value, document.activeElement.textContent]"
    page.locator(".sentence [aria-label=layer]").focus()
    before = page.locator(".sentence [aria-label=layer]").input_value()
    page.keyboard.press("ArrowUp" if before == "L2" else "ArrowDown")
    label, now, _ = page.evaluate(focused)
    assert label == "layer" and now != before
    for button in ("alone", "beside another step", "hold this step"):
        page.locator("#grid .controls").first.get_by_role("button", name=button).focus()
        page.keyboard.press("Enter")
        assert page.evaluate(focused)[2] == button


def test_the_keyboard_reaches_every_picture_and_every_control(look, report):
    page = look(report)
    page.evaluate("document.querySelectorAll('*').forEach((e, i) => (e.dataset.at = i))")
    reached, outlined = set(), True
    for _ in range(600):
        page.keyboard.press("Tab")
        at, outline = page.evaluate(
            "[document.activeElement.dataset.at, getComputedStyle(document.activeElement).outlineStyle]"
        )
        if at in reached or page.evaluate("document.activeElement === document.body"):
            break
        reached.add(at)
        outlined = outlined and outline != "none"
    controls = "a[href], button, input, select, summary, [role=application]"
    wanted = page.evaluate(
        "(kinds) => [...document.querySelectorAll(kinds)].filter((e) => "
        "e.checkVisibility({visibilityProperty: true}) && !e.disabled && "
        "!e.matches('.word, .map-kind')).map((e) => [e.dataset.at, e.outerHTML.slice(0, 99)])",
        controls,
    )
    assert len(wanted) > 60 and [what for at, what in wanted if at not in reached] == []
    assert outlined and page.evaluate("document.querySelectorAll('.word').length") > 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_fault_in_any_section_of_the_report(look, report, scheme, faults, shot):
    page = look(report, width=380, scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    shot(page, f"report-380-{scheme}")
    assert faults(page) == []


def test_answers_open_with_every_question_in_a_line(look, report, run_folder):
    from qkv.inspection.answers.reading import read

    page = look(report)
    told = page.locator("#answers .in-short > div")
    expected = [[a.question, a.brief or a.sentence] for a in read(run_folder.folder)]
    assert told.evaluate_all("(all) => all.map((e) => [...e.children].map((c) => c.textContent))") == expected
    assert all(len(line) < 200 for _, line in expected)
    page.locator("#answers .in-short a", has_text="Is the loss good?").click()
    page.wait_for_function("() => document.querySelector('#answer-loss').getBoundingClientRect().top < 200")


def test_a_corpus_full_of_markup_is_text_in_every_section(look, tmp_path):
    import qkv

    source = tmp_path / "markup.txt"
    line = '<script>window.hurt=1</script> <img src=x onerror="window.hurt=2"> </style> & <!-- '
    source.write_text("".join(f"{line} {i % 7} <b>{i % 5}</b>\n" for i in range(400)), encoding="utf-8")
    sizes = {"d_model": 16, "n_layers": 2, "n_heads": 2, "n_ctx": 32, "batch_size": 4}
    run = qkv.train(source, out=tmp_path / "run", tokenizer="word", steps=10, set=sizes, report=False)
    page = look(run.report(texts=[line]))
    page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    for section in page.query_selector_all("section.section"):
        section.scroll_into_view_if_needed()
        page.wait_for_timeout(50)
    assert page.evaluate("window.hurt") is None and page.complaints == []
    assert page.query_selector("main script, main img, main b b") is None
    assert page.locator("#attention .word", has_text="script").count() > 0
    assert "<" in page.locator("#words").inner_text()
