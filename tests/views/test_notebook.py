"""The notebook view: a widget that asks its kernel, a page and a picture as files, and what a notebook keeps."""

import base64
import io
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import qkv
from qkv.errors import ConfigError, UserError
from qkv.views.attention_svg import attention_svg, patterns_of, png
from qkv.views.notebook import AttentionView, esm, scoped_style
from qkv.views.viewer import Viewer

TEXT = "the day and the night"


@pytest.fixture(scope="module")
def view(run_folder):
    return AttentionView(Viewer(run_folder.folder), TEXT)


def test_a_run_gives_a_view_of_its_own_numbers(run_folder):
    view = qkv.load(run_folder.folder).attention(TEXT)
    assert "".join(view.text.tokens) == TEXT and view.text.steps == (1000,)
    np.testing.assert_allclose(np.nansum(patterns_of(view.text), axis=-1), 1, atol=0.05)
    with pytest.raises(UserError, match="expected at least 2"):
        qkv.load(run_folder.folder).attention("a")


def test_a_page_of_it_is_a_file_that_asks_for_nothing(view, tmp_path):
    page = view.save(tmp_path / "a.html").read_text("utf-8")
    assert "default-src 'none'" in page and not re.search(r"(?:src|href)\s*=\s*[\"']?https?://", page)


def test_a_picture_of_it_holds_every_head_pixel_by_pixel(view, tmp_path):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed; PNG is read by nothing else here")
    tree = ElementTree.parse(view.save(tmp_path / "a.svg"))
    pictures = [e for e in tree.iter("{http://www.w3.org/2000/svg}image") if len(e)]
    assert [p[0].text for p in pictures] == [f"L{layer}.H{head}" for layer in range(3) for head in range(4)]
    data = base64.b64decode(pictures[5].get("href").partition(",")[2])
    pixels = np.asarray(image.open(io.BytesIO(data)))
    values = patterns_of(view.text)[1, 1]
    assert pixels.shape == (*values.shape, 4)
    assert np.array_equal(pixels[..., 3] == 0, np.isnan(values))
    brightness = pixels[..., :3].sum(-1).astype(int)[np.tril_indices(len(TEXT))]
    order = np.argsort(values[np.tril_indices(len(TEXT))], kind="stable")
    assert (np.diff(brightness[order]) <= 0).all()  # the larger the share, the darker


def test_png_comes_back_as_it_was():
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed; PNG is read by nothing else here")
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 4), dtype=np.uint8)
    assert np.array_equal(np.asarray(image.open(io.BytesIO(png(pixels)))), pixels)


def test_a_picture_holds_any_text_as_text(view):
    import dataclasses

    bad = dataclasses.replace(view.text, origin="<script>\x00&</script>")
    assert "<script>" not in attention_svg(bad)
    ElementTree.fromstring(attention_svg(bad))


def test_a_picture_of_one_head_has_room_for_its_words(make, tmp_path):
    run = make(n_heads=1, n_kv_heads=1, d_head=48)
    view = AttentionView(Viewer(run.folder), "the day and the night " * 10)
    tree = ElementTree.parse(view.save(tmp_path / "a.svg"))
    words = [e.text for e in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert int(tree.getroot().get("width")) >= 7 * max(map(len, words))


def test_other_files_are_refused_in_a_sentence(view, tmp_path):
    with pytest.raises(ConfigError, match=r"expected a name ending in \.html or \.svg"):
        view.save(tmp_path / "a.pdf")


def test_a_notebook_keeps_html_that_needs_no_kernel(view):
    pytest.importorskip("anywidget", reason="anywidget is not installed (extra notebook)")
    shown = view._repr_mimebundle_()
    assert set(shown) >= {"text/plain", "text/html", "application/vnd.jupyter.widget-view+json"}
    frame = shown["text/html"]
    assert frame.startswith("<iframe") and 'sandbox="allow-scripts' in frame and "allow-same-origin" not in frame


def test_questions_of_the_widget_are_answered_by_number(view):
    reply, buffers = view.answer({"ask": "attention", "number": 7, "question": {"text": "a day"}})
    assert reply == {"number": 7} and len(buffers) == 1
    header = json.loads(buffers[0][8 : 8 + int.from_bytes(buffers[0][:4], "little")])
    assert "".join(header["texts"][0]["tokens"]) == "a day"
    reply, buffers = view.answer({"ask": "attention", "number": 8, "question": {"text": "a" * 30_000}})
    assert reply["number"] == 8 and "expected at most 20,000" in reply["error"] and buffers == []
    assert "error" in view.answer("nonsense")[0]


HOST = """async ([module, style, payload]) => {
  const url = URL.createObjectURL(new Blob([module], { type: "text/javascript" }));
  const { default: view } = await import(url);
  const state = { style, payload };
  const listeners = [];
  const model = {
    get: (key) => state[key], set() {}, save_changes() {}, off() {},
    on: (event, listener) => event === "msg:custom" && listeners.push(listener),
    send: async (message) => {
      const [reply, data] = await kernel(message);
      const bytes = data.map((text) => new DataView(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer));
      listeners.forEach((listener) => listener(reply, bytes));
    },
  };
  const el = document.createElement("div");
  document.body.append(el);
  window.stop = view.render({ model, el });
  document.documentElement.dataset.ready = "yes";
}"""


@pytest.mark.browser
def test_the_widget_draws_and_asks_its_kernel(view, browser, tmp_path):
    from playwright.sync_api import expect

    context = browser.new_context(offline=True)
    page = context.new_page()
    complaints = []
    page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))

    def kernel(message):
        reply, buffers = view.answer(message)
        return [reply, [base64.b64encode(data).decode() for data in buffers]]

    page.expose_function("kernel", kernel)
    (tmp_path / "empty.html").write_text("<!doctype html><title>notebook</title><body></body>")
    page.goto((tmp_path / "empty.html").as_uri())
    from qkv.views.report.packed import to_json

    page.evaluate(HOST, [esm("widget.js"), scoped_style(), to_json(view.payload(("attention", "sentence")))])
    expect(page.locator(".heads canvas")).to_have_count(12)
    page.locator("textarea").fill("another text")
    page.get_by_role("button", name="look").click()
    expect(page.locator(".detail .word")).to_have_count(len("another text"))
    page.evaluate("window.stop()")
    assert page.locator(".heads").count() == 0 and complaints == []
    context.close()


@pytest.mark.browser
def test_the_saved_page_is_drawn_without_a_network(view, look, tmp_path):
    page = look(view.save(tmp_path / "a.html"))
    assert page.locator(".heads canvas").count() == 12 and page.complaints == []
    assert page.locator(".detail .word").count() == len(TEXT)


@pytest.mark.browser
def test_an_executed_and_exported_notebook_shows_it_offline(run_folder, look, tmp_path):
    pytest.importorskip("nbconvert", reason="nbconvert is not installed (extra dev)")
    cells = [f"import qkv\nrun = qkv.load({str(run_folder.folder)!r})", f"run.attention({TEXT!r})"]
    cells = [{"cell_type": "code", "id": f"c{i}", "source": c, "metadata": {}, "outputs": [], "execution_count": None}
             for i, c in enumerate(cells)]  # fmt: skip
    path = tmp_path / "notebook.ipynb"
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    convert = [
        sys.executable,
        "-m",
        "nbconvert",
        "--log-level",
        "ERROR",
        "--ExecutePreprocessor.store_widget_state=False",
    ]
    subprocess.run([*convert, "--to", "notebook", "--execute", "--inplace", path], check=True, timeout=200)
    (output,) = json.loads(path.read_text("utf-8"))["cells"][1]["outputs"]
    assert {"application/vnd.jupyter.widget-view+json", "text/html", "text/plain"} <= set(output["data"])
    subprocess.run([*convert, "--to", "html", path], check=True, timeout=200)
    shown = look(path.with_suffix(".html"), ready=False)
    frame = shown.frame_locator("iframe")
    frame.locator(".heads canvas").nth(11).wait_for()
    assert frame.locator(".detail .word").count() == len(TEXT)
