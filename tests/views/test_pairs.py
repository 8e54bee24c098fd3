"""Attention of an encoder-decoder on the page: three of them for one pair, every number the model's own."""

import base64
import re

import numpy as np
import pytest
import torch

import qkv
from qkv.errors import UserError
from qkv.views.live.asking import Desk
from qkv.views.report.report import read_report, write_report
from qkv.views.sections.attention import read_pair, read_source
from qkv.views.sections.vocabulary import in_context, near_token
from qkv.views.viewer import Viewer

SOURCE = "hier sieht der Hund die Katze."
SET = {"d_model": 16, "n_layers": 2, "n_heads": 2, "n_ctx": 32, "batch_size": 8}


@pytest.fixture(scope="module")
def run(small_pairs, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    source = ":".join(map(str, small_pairs))
    options = dict(task="translate", steps=20, seed=1, set=SET, precision="fp32", threads=1, report=False)
    return qkv.train(source, out=out, **options)


@pytest.fixture(scope="module")
def texts(run):
    return {text.site: text for text in read_report(run.path, [SOURCE]).attention}


def stored(text):
    packed = text.patterns
    return np.frombuffer(base64.b64decode(packed.data), "u1").reshape(packed.shape) * packed.scale


def numbers(packed):
    return np.frombuffer(base64.b64decode(packed.data), "<f4").reshape(packed.shape)


def test_a_pair_is_read_as_the_model_was_trained_on_it(run):
    viewer = Viewer(run.path)
    pair = read_pair(viewer, f"  {SOURCE} => the dog ", 32)
    end = viewer.tokenizer.end_id
    assert pair.source[0, -1] == end == pair.inputs[0, 0]
    assert pair.written[:-1] == pair.input_tokens[1:] and len(pair.written) == pair.inputs.shape[1]
    assert viewer.tokenizer.decode(pair.inputs[0, 1:].tolist()).strip() == "the dog"
    own = read_pair(viewer, SOURCE, 32)
    assert viewer.tokenizer.decode(own.inputs[0, 1:].tolist()).strip() == run.predict([SOURCE])[0]
    short = read_pair(viewer, SOURCE, 4)
    assert short.source.shape == (1, 4) and short.source[0, -1] == end and short.n_all > 4
    with pytest.raises(UserError, match="type a longer one"):
        read_pair(viewer, "  ", 32)


def test_all_three_attentions_equal_softmax_of_scaled_products(run, texts):
    pair = read_pair(Viewer(run.path), SOURCE, 128)
    model = Viewer(run.path).model()
    with torch.inference_mode():
        _, record = model.forward_recorded(pair.source, pair.inputs)
    attention = model.dec.blocks[0].cross
    for site, place in (("cross", "dec.L{}.cross"), ("enc", "enc.L{}"), ("dec", "dec.L{}")):
        found = stored(texts[site])
        for layer in range(2):
            q, k = (record[f"{place.format(layer)}.{part}"][0].double() for part in "qk")
            scores = q @ k.mT * attention.scale
            if site == "dec":
                scores = scores.masked_fill(torch.ones(scores.shape[1:]).triu(1).bool(), -torch.inf)
            expected = scores.softmax(-1).numpy()
            expected = expected[:, *np.tril_indices(expected.shape[1])] if site == "dec" else expected
            np.testing.assert_allclose(found[-1, layer], expected, atol=1 / 510 + 1e-6)
    assert list(texts) == ["cross", "enc", "dec"]
    assert texts["cross"].keys == texts["enc"].tokens == pair.source_tokens
    assert texts["cross"].tokens == pair.written and texts["dec"].tokens == pair.input_tokens


def test_a_pair_is_followed_through_encoder_cross_attention_and_decoder(run):
    viewer = Viewer(run.path)
    found, pair, model = read_report(run.path, [SOURCE]).forward, read_pair(viewer, SOURCE, 24), viewer.model()
    with torch.inference_mode():
        logits, record = model.forward_recorded(pair.source, pair.inputs)
    assert found.encoder.tokens == found.keys == pair.source_tokens
    assert (found.tokens, found.written, found.causal, found.encoder.causal) == (
        pair.input_tokens,
        pair.written,
        True,
        False,
    )
    for text, scope in ((found, "dec."), (found.encoder, "enc.")):
        assert text.scope == scope and [layer.layer for layer in text.layers] == [0, 1]
        for layer in text.layers:
            for name in ("x", "q", "k", "z", "attn_out", "resid_mid", "resid_post"):
                expected = record[f"{scope}L{layer.layer}.{name}"][0].numpy()
                np.testing.assert_array_equal(numbers(getattr(layer, name)), expected)
    for layer in found.layers:
        for name in ("q", "k", "v", "scores", "pattern", "z", "attn_out"):
            expected = record[f"dec.L{layer.layer}.cross.{name}"][0].numpy()
            np.testing.assert_array_equal(numbers(getattr(layer.cross, name)), expected)
    assert found.encoder.layers[0].cross is None and found.encoder.top is None
    asked = torch.cat([pair.inputs[0, 1:], torch.tensor([viewer.tokenizer.end_id])])
    costs = torch.nn.functional.cross_entropy(logits[0].double(), asked, reduction="none").numpy()
    np.testing.assert_allclose(numbers(found.losses), costs, rtol=1e-6)
    assert found.loss == pytest.approx(costs.mean())


def test_formulas_of_cross_attention_give_their_numbers(run):
    viewer = Viewer(run.path)
    found, pair, model = read_report(run.path, [SOURCE]).forward, read_pair(viewer, SOURCE, 24), viewer.model()
    with torch.inference_mode():
        _, record = model.forward_recorded(pair.source, pair.inputs)
        for layer in found.layers:
            stem, block = f"dec.L{layer.layer}.", model.dec.blocks[layer.layer]
            here = {name.removeprefix(stem): t for name, t in record.items() if name.startswith(stem)}
            names = {"attn_out": here["attn_out"], "cross": block.cross, "norm_cross": block.norm_cross}
            names |= {"embed": record["dec.embed"], "enc": type("Read", (), {"norm_f": record["enc.norm_f"]})}
            names |= {"L0": type("Before", (), {"resid_post": record["dec.L0.resid_post"]})}
            for kind in "qkv":
                formula = re.sub(r" (?=cross\.W_)", " @ ", layer.formulas[f"cross.{kind}"])
                norm = getattr(block.cross, f"{kind}norm", None)
                formula = formula.replace(f"cross.{kind}norm", "normed")
                names["normed"] = lambda joined, norm=norm: norm(joined.unflatten(-1, (2, -1))).flatten(-2)
                made = eval(formula, dict(names)).unflatten(-1, (2, -1)).transpose(1, 2)
                torch.testing.assert_close(made, here[f"cross.{kind}"])
            z = here["cross.z"].transpose(1, 2).flatten(2)
            torch.testing.assert_close(z @ block.cross.W_O, here["cross.attn_out"])
            assert layer.formulas["cross.attn_out"].startswith("z cross.W_O")
            before = record["dec.embed"] if layer.layer == 0 else record["dec.L0.resid_post"]
            torch.testing.assert_close(before + here["attn_out"] + here["cross.attn_out"], here["resid_mid"])
            assert layer.formulas["resid_mid"].endswith(" + attn_out + cross.attn_out")


@pytest.mark.browser
def test_the_walk_shows_the_decoder_with_what_it_reads_and_the_encoder(look, run, tmp_path):
    page = look(write_report(run.path, tmp_path / "r.html", texts=[SOURCE]))
    pair, walk = read_pair(Viewer(run.path), SOURCE, 24), page.locator("#forward")
    stages = walk.locator(".stage").evaluate_all("(all) => all.map((e) => e.dataset.stage)")
    assert [s for s in stages if s and s.startswith("cross.")] == [
        f"cross.{name}" for name in ("q", "k", "v", "scores", "pattern", "z", "attn_out")
    ]
    n, n_source = len(pair.written), len(pair.source_tokens)
    cells = walk.locator("[data-stage='cross.pattern'] .raster").get_attribute("data-cells")
    assert cells == f"{n}x{n_source}"
    cross = walk.locator("[data-stage='cross.k'] .raster")
    assert cross.get_attribute("data-cells").startswith(f"{n_source}x")
    cross.focus()
    page.keyboard.press("ArrowRight")
    said = walk.locator(".readout").inner_text()
    assert said.startswith("cross.k of") and 'record["dec.L0.cross.k"][0, 0, 0, 0]' in said
    assert walk.locator(".predictions li").count() > 0
    words, after = walk.locator(".words button"), walk.locator(".answer-box h3")
    assert words.count() == n and after.inner_text().endswith(f" ({n - 1})")
    words.first.click()
    assert after.inner_text().endswith(" (0)")
    assert page.locator(".tokens .word").count() == n_source and page.locator(".tokens .word.on").count() == 1
    walk.locator("button", has_text="encoder").first.click()
    page.locator(".tokens .word").nth(1).click()
    assert words.count() == 0  # they are the page's
    x = walk.locator("[data-stage='x']")
    assert x.locator(".raster").get_attribute("data-cells").startswith(f"{n_source}x")
    assert x.locator(".row-mark").evaluate("(mark) => parseFloat(mark.style.top)") == pytest.approx(100 / n_source)
    attention = page.locator("#attention")
    assert attention.locator("button", has_text="the source by itself").get_attribute("aria-pressed") == "true"
    assert attention.locator(".detail .word.on").all_inner_texts() == page.locator(".tokens .word.on").all_inner_texts()
    assert walk.locator("[data-stage^='cross.']").count() == 0
    assert "The decoder reads these vectors by cross-attention." in walk.locator(".stage.last").inner_text()
    assert page.complaints == []


def test_notes_of_cross_attention_are_plain_means(texts):
    text = texts["cross"]
    patterns, n = stored(text)[-1], len(text.keys)
    for note in text.heads[-4:]:
        p = patterns[note.layer, note.head]
        shares = {share.name: share.share for share in note.shares}
        assert shares == {
            "the first": pytest.approx(p[:, 0].mean(), abs=0.005),
            "the end mark": pytest.approx(p[:, -1].mean(), abs=0.005),
        }
        assert note.even_entropy_nats == pytest.approx(np.log(n))
        assert note.entropy_nats == pytest.approx(-(p * np.log(np.maximum(p, 1e-12))).sum(1).mean(), abs=0.1)


def test_a_live_page_answers_with_all_three_and_takes_a_target(run):
    desk = Desk(Viewer(run.path))
    found = desk.answer("attention", {"text": f"{SOURCE} => the dog sees"})["texts"]
    assert [text.site for text in found] == ["cross", "enc", "dec"]
    assert "".join(found[0].tokens[:-1]).replace("\u2423", " ").split() == ["the", "dog", "sees"]
    assert {text.source for text in found} == {f"{SOURCE} => the dog sees"}  # what another step is asked for


def test_a_long_source_is_shown_by_itself_and_one_token_is_enough(small_pairs, tmp_path):
    source, sizes = ":".join(map(str, small_pairs)), SET | {"n_ctx": 600, "n_layers": 1}
    options = dict(task="translate", steps=1, set=sizes, precision="fp32", threads=1, report=False)
    desk = Desk(Viewer(qkv.train(source, out=tmp_path / "run", **options).path))
    pair = f"{'hier ' * 300} => {'the dog ' * 100}"
    (text,) = desk.answer("attention", {"text": pair})["texts"]
    alone = read_source(desk.viewer, pair, 2048)
    assert text.tile and text.site == "enc" and text.tokens == alone.tokens and text.tokens[-1] == "[END]"
    with torch.inference_mode():
        _, record = desk.viewer.reader().forward_recorded(alone.ids)
    line = desk.answer("line", {"text": pair, "head": 1, "position": 5})
    reads = np.frombuffer(base64.b64decode(line["reads"].data), "<f4")
    np.testing.assert_allclose(reads, record["L0.pattern"][0, 1, 5].numpy(), atol=1e-6)
    assert [one.site for one in desk.answer("attention", {"text": "."})["texts"]] == ["cross", "enc", "dec"]


@pytest.mark.browser
def test_the_alignment_can_be_walked_over_and_the_other_attentions_chosen(look, run, texts, tmp_path):
    report = write_report(run.path, tmp_path / "r.html", [SOURCE])
    page = look(report, fragment="#addr=dec.L1.cross.H1.QK")
    section = page.locator("#attention")
    assert section.locator(".detail h3 code").inner_text() == "dec.L1.cross.H1"
    panel = section.locator(".detail .raster").first
    panel.focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    said = section.locator(".detail .readout").inner_text()
    found = re.search(r"while writing .*\((\d+)\), ([\d.]+) of the attention is on .*\((\d+)\)$", said)
    assert found, said
    row, column = int(found[1]), int(found[3])
    assert (row, column) == (1, 2)
    assert float(found[2]) == pytest.approx(stored(texts["cross"])[-1, 1, 1, row, column], abs=0.006)
    section.locator("[data-side=source] .word").nth(2).click()
    assert "is read while writing" in section.locator(".detail .readout").inner_text()
    section.locator("button", has_text="the source by itself").click()
    assert section.locator(".detail h3 code").inner_text() == "enc.L1.H1"
    section.locator(".thumb").first.click()
    assert "addr=enc.L0.H0.pattern" in page.url
    page.reload()
    page.wait_for_selector("html[data-ready=yes]")
    assert section.locator(".detail h3 code").inner_text() == "enc.L0.H0"
    assert page.complaints == []


@pytest.mark.browser
def test_every_matrix_of_both_sides_has_its_picture(look, run, tmp_path):
    page = look(write_report(run.path, tmp_path / "r.html", [SOURCE]), fragment="#addr=dec.L0.W_Q")
    items = [item.address for item in read_report(run.path).matrices.items]
    first = next(i for i, address in enumerate(items) if address.startswith("dec."))
    assert all(a.startswith("enc.") for a in items[:first]) and not any(a.startswith("enc.") for a in items[first:])
    thumbs = page.locator("#matrices .thumb")
    told = [label.split(",")[0] for label in thumbs.evaluate_all("(all) => all.map((e) => e.ariaLabel)")]
    assert sorted(told) == sorted(items) and {"enc.L1.W_Q", "dec.L1.W_Q", "dec.L1.cross.W_Q"} < set(told)
    assert page.locator("#matrices .thumb[aria-pressed=true]").get_attribute("aria-label").startswith("dec.L0.W_Q,")
    layers = page.locator("#matrices .thumb-layer").all_inner_texts()
    assert layers == ["enc.L0", "enc.L1", "dec.L0", "dec.L1"]
    heads = [name.split("\n")[0] for name in page.locator("#matrices .tables .thumb-kind").all_inner_texts()]
    assert heads and heads == [address for address in items if ".L" not in address]
    thumbs.nth(told.index("enc.L1.W_Q")).click()
    assert "addr=enc.L1.W_Q" in page.url


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_fault_in_the_alignment(look, run, tmp_path, faults, scheme):
    page = look(write_report(run.path, tmp_path / "r.html", [SOURCE]), width=380, scheme=scheme)
    assert faults(page) == [] and page.evaluate("document.documentElement.scrollWidth") <= 380


def test_the_words_of_both_languages_stand_in_one_map(run):
    words = read_report(run.path, [SOURCE]).words
    assert words is not None and words.trio is not None and words.trio.n <= 14
    viewer = Viewer(run.path)
    table = viewer.model().enc.embedding.W_E.detach().numpy().astype(float)
    rows = table[list(words.token_ids)]
    cosines = rows @ rows.T / np.linalg.norm(rows, axis=1) / np.linalg.norm(rows, axis=1)[:, None]
    np.fill_diagonal(cosines, -2)
    packed = words.cosines
    shown = np.frombuffer(base64.b64decode(packed.data), packed.dtype).reshape(packed.shape)[-1]
    np.testing.assert_allclose(shown[:, 0], cosines.max(1), atol=1e-3)
    near = near_token(viewer, words.tokens[0], None)
    assert near.tokens[0] == viewer.tokenizer.token(int(np.argmax(_cosines_to(table, words.token_ids[0]))))
    found = in_context(viewer, SOURCE, 1, None)
    contextual = run.embed([SOURCE])[0]
    assert found.tokens == tuple(contextual.tokens) and found.layers == tuple(contextual.layers)


def _cosines_to(table, row):
    cosines = table @ table[row] / np.linalg.norm(table, axis=1) / np.linalg.norm(table[row])
    cosines[row] = -2
    return cosines
