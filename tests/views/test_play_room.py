"""The Playground section: a small run goes on in the page from its own weights, and comes back as safetensors."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from qkv.models import build
from qkv.models.matrices import Catalogue
from qkv.views.report.bundle import static_text
from qkv.views.report.report import read_report, write_report
from qkv.views.sections.training_in_page import LARGEST

TEXTBOOK = {"positions": "learned", "norm": "layer", "norm_eps": 1e-5, "mlp": "gelu"}
PAGE = Path(__file__).parents[2] / "docs" / "playground" / "index.html"
RACE = "playground.race"


@pytest.fixture
def small(make):
    return make(layout=TEXTBOOK, d_model=32, d_head=8, d_mlp=64, n_layers=2)


def loss_of(run, weights, text):
    """Mean cross-entropy in nats on the last tenth of a text, in windows of 32, in float64."""
    model = build(run.config.model, 1)
    Catalogue(model).load_state({a: torch.as_tensor(np.asarray(v, dtype=np.float32)) for a, v in weights.items()})
    known = {run.tokenizer.token(i): i for i in range(run.tokenizer.d_vocab)}
    ids = [known.get(character, known["[UNK]"]) for character in text]
    rest = ids[math.floor(len(ids) * 0.9) :]
    windows = [rest[32 * i : 32 * i + 33] for i in range(min(32, (len(rest) - 1) // 32))]
    rows = torch.as_tensor(windows)
    with torch.no_grad():
        logits = model.double().eval()(rows[:, :-1])
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()))


def test_a_small_run_travels_bit_for_bit(small):
    section = read_report(small.folder).play
    assert section.tokens == tuple(small.tokenizer.token(i) for i in range(small.tokenizer.d_vocab))
    assert section.step == 1000 and section.weights.keys() == small.last.keys()
    import base64

    for address, packed in section.weights.items():
        assert base64.b64decode(packed.data) == small.last[address].astype("<f4").tobytes()


def test_the_changes_of_a_run_travel_with_its_settings(make):
    changes = ("L0.W_K=share(L0.W_Q)", "L1.W_K=share(L1.W_Q)")
    section = read_report(
        make(layout=TEXTBOOK, d_model=32, d_head=8, d_mlp=64, n_layers=2, changes=changes).folder
    ).play
    assert section.settings["changes"] == ", ".join(changes)


def test_a_large_run_does_not_travel_and_the_limit_is_said_once(make):
    run = make(d_model=96, d_head=24, d_mlp=384, n_layers=3)
    section = read_report(run.folder).play
    assert section.parameters > LARGEST and section.weights is None
    assert int(re.search(r"LARGEST = (\d+);", static_text("fits.js"))[1]) == LARGEST
    assert "qkv-playground" not in write_report(run.folder).read_text("utf-8").split("<script>")[0]


def test_the_layout_of_the_browser_is_that_of_the_textbook_preset():
    from qkv.config import to_dict
    from qkv.presets import PRESETS

    layout = {"kind": "CausalLM"} | to_dict(PRESETS["textbook"].layout)
    fixed = dict(re.findall(r'(\w+): ("\w+"|[\w.-]+)', re.search(r"FIXED = \{(.*?)\};", static_text("fits.js"))[1]))
    assert {name: json.loads(value) for name, value in fixed.items()} == {name: layout[name] for name in fixed}


def steps(frame, n):
    for _ in range(n):
        before = frame.evaluate(f"() => {RACE}.taken")
        frame.get_by_role("button", name="one step").click()
        frame.wait_for_function(f"(n) => {RACE}.taken > n", arg=before)


@pytest.mark.browser
@pytest.mark.parametrize("host", ["report", "live"])
def test_a_run_goes_on_in_the_page_and_comes_back(look, small, serving, tmp_path, shot, host):
    server = serving(small.folder) if host == "live" else None
    if server:
        page = look(f"http://127.0.0.1:{next(server)}/", offline=False)
    else:
        page = look(write_report(small.folder, tmp_path / "r.html"))
    page.get_by_role("button", name="go on training it here").click()
    page.wait_for_function(
        "() => document.querySelector('iframe').contentDocument?.documentElement?.dataset.ready === 'yes'"
    )
    frame = page.frames[1]
    text = frame.evaluate("() => playground.state.text")
    steps(frame, 5)
    before = frame.evaluate(f"() => {RACE}.curves.a.validations[0].loss")
    assert before == pytest.approx(loss_of(small, small.last, text), rel=1e-9)
    after = frame.evaluate(f"() => {RACE}.curves.a.validations.at(-1)")
    assert after["step"] == 5 and after["loss"] < before
    with page.expect_download() as waiting:
        frame.locator("[data-save=a]").click()
    saved = load_file(waiting.value.path())
    assert {a: v.shape for a, v in saved.items()} == {a: v.shape for a, v in small.last.items()}
    assert loss_of(small, saved, text) == pytest.approx(after["loss"], rel=1e-6)
    with page.expect_download() as waiting:
        frame.locator("[data-save=b]").click()  # its W_E is frozen
    assert np.array_equal(load_file(waiting.value.path())["W_E"], small.last["W_E"].astype(np.float32))
    shot(page, f"play-section-{host}")
    frame.evaluate("() => void document.querySelector('button.play').click()")
    frame.wait_for_function(f"(n) => {RACE}.taken > n + 5", arg=5)
    frame.locator("button.play").focus()
    page.keyboard.press("Escape")  # from inside the frame: back to the run, and nothing trains unseen
    page.wait_for_function("() => !document.querySelector('dialog').open")
    frame.wait_for_function(f"() => !{RACE}.playing")
    before = page.evaluate("() => scrollY")
    box = page.locator("#play").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, 450)
    page.mouse.wheel(0, -300)
    page.wait_for_function("(y) => scrollY < y - 200", arg=before)
    page.get_by_role("button", name="back to the playground").click()
    assert page.locator("dialog").evaluate("(e) => e.open && e.getBoundingClientRect().height === innerHeight")
    assert frame.evaluate(f"() => {RACE}.taken") > 10  # it is still there
    assert page.complaints == []
    if server:
        page.close()
        assert list(server) == []


@pytest.mark.browser
def test_files_of_a_run_and_files_saved_here_are_loaded(look, small, tmp_path):
    page = look(PAGE)
    files = [small.folder / name for name in ("model.safetensors", "config.toml", "tokenizer.json")]
    field, wrong = page.locator("#load input[type=file]"), page.locator("#load .wrong")
    field.set_input_files(files)
    page.wait_for_function(f"() => {RACE}.given && document.documentElement.dataset.ready === 'yes'")
    text = page.evaluate("() => playground.state.text")
    assert "2 layers, d_model 32, 4 heads" in page.locator("#load [role=status]").inner_text()
    with page.expect_download() as waiting:
        page.locator("[data-save=a]").click()
    mine = tmp_path / "mine.safetensors"
    waiting.value.save_as(mine)
    steps(page, 1)
    first = page.evaluate(f"() => {RACE}.curves.a.validations[0].loss")
    assert first == pytest.approx(loss_of(small, small.last, text), rel=1e-9)
    page.locator("#load .chip").click()
    page.wait_for_function(f"() => !{RACE}.given && document.documentElement.dataset.ready === 'yes'")
    field.set_input_files([mine])
    page.wait_for_function(f"() => {RACE}.given?.name === 'mine.safetensors'")
    page.wait_for_selector("html[data-ready=yes]")
    steps(page, 1)
    assert page.evaluate(f"() => {RACE}.curves.a.validations[0].loss") == pytest.approx(first, rel=1e-9)

    field.set_input_files([small.folder / "model.safetensors"])
    page.wait_for_function("() => document.querySelector('#load .wrong').textContent")
    assert "alone does not say how many heads" in wrong.inner_text()
    torn = tmp_path / "model.safetensors"
    torn.write_bytes((small.folder / "model.safetensors").read_bytes()[:-400])
    field.set_input_files([torn, *files[1:]])
    page.wait_for_function("() => document.querySelector('#load .wrong').textContent.includes('damaged')")
    other = tmp_path / "tokenizer.json"
    other.write_text(json.dumps({"model": {"type": "BPE", "vocab": {"ab": 0}}}), encoding="utf-8")
    field.set_input_files([*files[:2], other])
    page.wait_for_function("() => document.querySelector('#load .wrong').textContent.includes('another kind of token')")
    save_file({"x": np.zeros((600, 600), np.float32)}, torn)
    field.set_input_files([torn, *files[1:]])
    page.wait_for_function("() => document.querySelector('#load .wrong').textContent.includes('360,000 parameters')")
    assert page.complaints == []


@pytest.mark.browser
def test_keys_that_are_queries_come_back_as_they_were_saved(look, tmp_path):
    page = look(PAGE, fragment="#layers=2&a=&b=shared:true&step=2")
    with page.expect_download() as waiting:
        page.locator("[data-save=b]").click()
    mine = tmp_path / "mine.safetensors"
    waiting.value.save_as(mine)
    assert "L0.W_K" not in load_file(mine)
    last = page.evaluate(f"() => {RACE}.curves.b.losses.length")
    page.locator("#load input[type=file]").set_input_files([mine])
    page.wait_for_function(f"() => {RACE}.given && document.documentElement.dataset.ready === 'yes'")
    assert last == 2 and page.evaluate("() => ['a', 'b'].map((arm) => playground.state[arm].shared)") == [True, True]
    origin = page.evaluate(f"() => [...{RACE}.made.b.origin]")
    saved = np.concatenate(
        [load_file(mine)[e].ravel() for e in page.evaluate(f"() => {RACE}.made.b.entries.map((e) => e.address)")]
    )
    assert np.array_equal(np.float32(origin), saved)
    assert page.complaints == []


@pytest.mark.browser
def test_a_run_that_cannot_go_on_in_the_page_has_no_section_for_it(look, make, tmp_path):
    page = look(write_report(make(layout={"positions": "rotary"}).folder, tmp_path / "r.html"))
    assert page.locator("#play").count() == 0 and page.locator("nav a", has_text="Playground").count() == 0
    assert page.complaints == []
