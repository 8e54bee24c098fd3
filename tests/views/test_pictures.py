"""Images in the attention section: those that the run keeps, patch by patch, every number the model's own."""

import base64
import gzip
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import qkv
from qkv.errors import UserError
from qkv.models.layout import Patches
from qkv.randomness import generator
from qkv.views.live.asking import Desk
from qkv.views.report.report import read_report, write_report
from qkv.views.sections.attention import _frame
from qkv.views.viewer import Viewer


def write_idx(path: Path, values: np.ndarray) -> None:
    data = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}i", *values.shape)
    path.write_bytes(gzip.compress(data + values.astype(np.uint8).tobytes()))


@pytest.fixture(scope="module", params=["mean", "class"])
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bars")
    for name, n in (("train", 60), ("t10k", 20)):
        draws = generator("tests", "pictures", name)
        labels, pixels = np.arange(n) % 3, draws.integers(0, 90, (n, 9, 6))
        for pixel, label in zip(pixels, labels, strict=True):
            pixel[3 * label : 3 * label + 3] += 140
        write_idx(folder / f"{name}-images-idx3-ubyte.gz", pixels)
        write_idx(folder / f"{name}-labels-idx1-ubyte.gz", labels)
    sizes = {"d_model": 16, "n_layers": 2, "n_heads": 2, "stride": 3, "patch": 3, "pool": request.param}
    options = dict(task="image", steps=12, seed=3, threads=1, precision="fp32", set=sizes, report=False)
    return qkv.train(folder, out=folder / "run", **options)


@pytest.fixture(scope="module")
def texts(run):
    return read_report(run.path).attention


def unpacked(packed):
    stored = np.frombuffer(base64.b64decode(packed.data), {"uint8": "u1", "float32": "<f4"}[packed.dtype])
    return stored.reshape(packed.shape) * packed.scale


def pooled_rows(run, texts):
    """What the answer attends to in each head of the first image at the last step, [layer, head, patch]."""
    picture = texts[0].picture
    pixels = torch.from_numpy(unpacked(picture.pixels).astype("u1").transpose(2, 0, 1))[None]
    with torch.inference_mode():
        _, record = Viewer(run.path).model().forward_recorded(pixels)
    patterns = torch.stack([record[f"L{layer}.pattern"][0] for layer in range(2)])
    rows = patterns[:, :, 0] if picture.pooled == "class" else patterns.mean(2)
    return rows[:, :, picture.before :].numpy()


def test_validation_images_are_kept_and_shown_with_their_class(run, texts):
    assert [text.origin for text in texts] == [f"validation image {i}" for i in range(3)]
    for i, text in enumerate(texts):
        assert text.picture.said.startswith(f"of class {i}, classified as ") and text.picture.said.endswith(
            " at step 12"
        )
        assert text.picture.grid == (3, 2) and len(text.tokens) == 6 + text.picture.before
        bright = unpacked(text.picture.pixels)[:, :, 0].reshape(3, -1).mean(1)
        assert bright.argmax() == i
    assert len(texts[0].steps) > 1 and texts[0].steps[-1] == 12


def test_a_live_page_of_images_answers_about_matrices_and_no_texts(run):
    desk = Desk(Viewer(run.path))
    assert desk.can == ("matrix",)
    with pytest.raises(UserError, match="reads images and no text"):
        run.attention("a text")
    assert desk.answer("matrix", {"address": "L1.H0.W_Q"}).values.shape == (16, 8)


def test_the_grid_lies_where_the_middles_of_the_patches_are():
    assert _frame(Patches(height=9, width=6, patch=3)) == (0, 0, 1, 1)
    # 28 pixels, a patch of 8 every 5: 6 of them end at 33, so 2 are added before and 3 behind
    low, high = (1.5 - 2) / 28, (1.5 - 2 + 30) / 28
    assert _frame(Patches(height=28, width=28, patch=8, stride=5)) == pytest.approx((low, low, high, high))


def test_an_image_is_followed_to_its_class_by_the_models_own_numbers(run):
    found, viewer = read_report(run.path).forward, Viewer(run.path)
    pixels = torch.from_numpy(unpacked(found.picture.pixels).astype("u1").transpose(2, 0, 1))[None]
    with torch.inference_mode():
        logits, record = viewer.model().forward_recorded(pixels)
    chances = logits[0].double().softmax(0)
    assert found.top_tokens == (tuple(viewer.config.model.classes[i] for i in chances.argsort(descending=True)),)
    np.testing.assert_allclose(unpacked(found.top)[0], chances.sort(descending=True).values, rtol=1e-6)
    assert found.tokens == read_report(run.path).attention[0].tokens and found.loss is None and not found.causal
    assert [layer.layer for layer in found.layers] == [0, 1]
    for layer in found.layers:
        for name in ("x", "q", "pattern", "z", "resid_post"):
            np.testing.assert_array_equal(unpacked(getattr(layer, name)), record[f"L{layer.layer}.{name}"][0].numpy())
    head, h = viewer.model().head, record["norm_f"][0]
    pooled, whose = (h[0], "the class token") if found.picture.before else (h.mean(0), "the mean over patches")
    torch.testing.assert_close((pooled @ head.W_cls + head.b_cls).double().softmax(0), chances)
    assert found.pooled == whose and ("mean(" in found.formulas["prediction"]) == whose.startswith("the mean")


@pytest.mark.browser
def test_attention_is_drawn_over_the_picture_and_the_picture_goes_through_the_model(look, run, texts, tmp_path):
    page = look(write_report(run.path, tmp_path / "r.html"), fragment="#addr=L1.H1.pattern")
    expected = pooled_rows(run, texts)
    read = """(c) => [c.width, c.height, ...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]"""
    for picture in page.locator("#attention .photograph").all():  # thumbnails, the one that asks, the large one
        photo, layer = picture.locator("canvas").all()
        assert photo.evaluate(read)[:2] == [6, 9]
        boxes = [one.bounding_box() for one in (picture, layer)]
        assert all(abs(boxes[0][side] - boxes[1][side]) < 1 for side in ("x", "y", "width", "height"))
    large = page.locator("#attention .detail .photograph").last.locator("canvas").last.evaluate(read)
    alpha = np.array(large[2:]).reshape(6, 4)[:, 3] / 255
    shares = expected[1, 1]
    np.testing.assert_allclose(alpha, 0.85 * np.sqrt(shares / shares.max()), atol=0.02)
    walk = page.locator("#forward")
    assert walk.locator(".shown-image canvas").evaluate(read)[:2] == [6, 9]
    assert walk.locator(".answer-box h3").inner_text() == f"the class, from {read_report(run.path).forward.pooled}"
    assert walk.locator(".predictions li").count() == 3 and walk.locator(".stage").count() >= 10
    assert page.complaints == []


@pytest.mark.browser
def test_a_patch_asks_and_its_numbers_are_the_models(look, run, texts, tmp_path):
    page = look(write_report(run.path, tmp_path / "r.html"), fragment="#addr=L1.H1.pattern")
    section = page.locator("#attention")
    expected = pooled_rows(run, texts)[1, 1]
    whose = "the class token" if texts[0].picture.before else "the mean over patches"
    said = section.locator(".detail .readout").inner_text()
    name, row, column, share = re.match(r"(.*) reads patch (\d),(\d) ([\d.]+)", said).groups()
    assert name == whose and int(row) * 2 + int(column) == expected.argmax()
    assert float(share) == pytest.approx(expected.max(), abs=0.006)
    heat = section.locator(".detail .raster[aria-label*='by patch']")
    heat.focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    said = section.locator(".detail .readout").inner_text()
    assert said.startswith(f"{whose} gives ") and said.endswith("to patch 1,1")
    assert float(said.split()[-7]) == pytest.approx(expected[3], abs=0.006)
    section.locator(".detail .raster[aria-label^='the image; a patch']").focus()
    page.keyboard.press("ArrowRight")
    assert section.locator(".detail .readout").inner_text().startswith("patch 0,0 reads patch ")
    section.locator("button", has_text="who reads it").click()
    assert section.locator(".detail .readout").inner_text().startswith("patch 0,0 is read by patch ")
    section.locator("button", has_text="received in all").click()
    heat.focus()
    page.keyboard.press("ArrowDown")
    told = re.match(r"patch (\d),(\d) receives ([\d.]+) in all", section.locator(".detail .readout").inner_text())
    received = unpacked(texts[0].received)[-1, 1, 1][int(told[1]) * 2 + int(told[2]) + texts[0].picture.before]
    assert told[3] == f"{received:.3g}"
    page.get_by_label("text", exact=True).select_option(label="validation image 2")
    section.locator("figcaption", has_text="of class 2, classified as").wait_for()
    assert section.locator(".photograph canvas").first.evaluate("(c) => [c.width, c.height]") == [6, 9]
    assert page.complaints == []


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_fault_among_the_patches(look, run, tmp_path, faults, scheme):
    page = look(write_report(run.path, tmp_path / "r.html"), width=380, scheme=scheme)
    assert faults(page) == [] and page.evaluate("document.documentElement.scrollWidth") <= 380


@pytest.mark.browser
def test_patches_that_reach_beyond_the_picture_do_not_widen_the_page(look, run, tmp_path):
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 2, "stride": 4, "patch": 5}
    folder = Path(run.path).parent
    wide = qkv.train(
        folder,
        out=tmp_path / "run",
        task="image",
        steps=1,
        seed=3,
        threads=1,
        precision="fp32",
        set=sizes,
        report=False,
    )
    page = look(write_report(wide.path, tmp_path / "r.html"), width=380)
    page.locator("#attention .photograph").first.scroll_into_view_if_needed()
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
