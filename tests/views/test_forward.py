"""One text through the model: activations are the recorded ones, losses add up, gradients are autograd's."""

import base64

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import qkv
from qkv.errors import ChangeError, UserError
from qkv.inspection.attribution import direct
from qkv.inspection.patching import Asked, patch
from qkv.models import build
from qkv.models.matrices import Catalogue
from qkv.views.live.asking import Desk
from qkv.views.report.report import read_report
from qkv.views.sections.forward import backward, forward, layers_that_fit
from qkv.views.sections.patching import patched, written
from qkv.views.sections.vocabulary import in_context
from qkv.views.viewer import Viewer

TEXT = "the day and the night"


@pytest.fixture(scope="module")
def viewer(run_folder):
    return Viewer(run_folder.folder)


@pytest.fixture(scope="module")
def model(run_folder):
    """The run's last weights, by the models section alone."""
    model = build(run_folder.config.model, 1)
    Catalogue(model).load_state({name: torch.tensor(values) for name, values in run_folder.last.items()})
    return model.eval()


@pytest.fixture(scope="module")
def ids(run_folder):
    return torch.as_tensor(run_folder.tokenizer.encode(TEXT))[None]


def array(packed):
    return np.frombuffer(base64.b64decode(packed.data), {"float32": "<f4", "int32": "<i4"}[packed.dtype]).reshape(
        packed.shape
    )


def test_every_activation_is_the_recorded_one(viewer, model, ids):
    found = forward(viewer, TEXT, None)
    with torch.no_grad():
        _, record = model.forward_recorded(ids)
    np.testing.assert_array_equal(array(found.embed), record["embed"][0].numpy())
    for layer in found.layers:
        for name in ("x", "q", "k", "v", "pattern", "z", "attn_out", "resid_mid", "mlp_out", "resid_post"):
            expected = record[f"L{layer.layer}.{name}"][0].numpy()
            np.testing.assert_array_equal(array(getattr(layer, name)), expected, err_msg=name)
        scores = record[f"L{layer.layer}.scores"][0].numpy()
        shown = array(layer.scores)
        assert np.array_equal(np.isnan(shown), np.isinf(scores))
        np.testing.assert_array_equal(shown[np.isfinite(scores)], scores[np.isfinite(scores)])


def test_losses_and_predictions_are_those_of_the_logits(viewer, model, ids, run_folder):
    found = forward(viewer, TEXT, None, layers=[0])
    with torch.no_grad():
        logits = model(ids)[0]
    expected = F.cross_entropy(logits[:-1], ids[0, 1:], reduction="none").numpy()
    np.testing.assert_allclose(array(found.losses)[:-1], expected, rtol=1e-5)
    assert np.isnan(array(found.losses)[-1]) and found.loss == pytest.approx(expected.mean(), rel=1e-5)
    best = [run_folder.tokenizer.token(int(i)) for i in logits.argmax(-1)]
    assert [row[0] for row in found.top_tokens] == best
    np.testing.assert_allclose(array(found.top)[:, 0], logits.softmax(-1).max(-1).values.numpy(), rtol=1e-5)


def test_one_position_predicts_nothing_and_costs_nothing(viewer):
    found = forward(viewer, TEXT, None, longest=1)
    assert len(found.tokens) == 1 and found.losses is None and found.loss is None


def test_a_change_is_that_of_the_change_language(viewer, model, ids):
    found = forward(viewer, TEXT, None, layers=[1], changes=["L1.H2.W_V=zero"])
    assert not array(found.layers[0].v)[2].any() and array(found.layers[0].v)[1].any()
    assert found.changed == ("L1.H2.W_V: set to 0.",)
    found = forward(viewer, TEXT, None, layers=[0], changes=["L0.W_V=identity"])
    v = array(found.layers[0].v).transpose(1, 0, 2).reshape(len(TEXT), -1)
    np.testing.assert_array_equal(v, array(found.layers[0].x))
    again = forward(viewer, TEXT, None, layers=[0])
    with torch.no_grad():
        np.testing.assert_array_equal(array(again.layers[0].q), model.forward_recorded(ids)[1]["L0.q"][0].numpy())
    assert again.changed == ()


def test_a_change_of_a_shared_matrix_says_who_shares_it(make):
    tied = Viewer(make(tied=True).folder)
    assert forward(tied, TEXT, None, changes=["W_E=zero"]).changed == ("W_E (the same matrix as W_U): set to 0.",)


def test_mistakes_are_sentences(viewer):
    with pytest.raises(UserError, match="layers 0 to 2"):
        forward(viewer, TEXT, None, layers=[3])
    with pytest.raises(ChangeError, match="freeze"):
        forward(viewer, TEXT, None, changes=["L0.W_Q=freeze"])


def test_the_way_back_is_autograds(viewer, model, ids):
    found = backward(viewer, TEXT, None)
    exact = build(viewer.config.model, 1)
    Catalogue(exact).load_state(Catalogue(model).state())
    exact.double()
    logits, record = exact.forward_recorded(ids)
    record["L0.resid_pre"].retain_grad()
    loss = F.cross_entropy(logits[0, :-1], ids[0, 1:])
    loss.backward()
    assert found.loss == pytest.approx(float(loss.detach()), rel=1e-9)
    expected = record["L0.resid_pre"].grad[0].norm(dim=-1).numpy()[: len(found.tokens)]
    np.testing.assert_allclose(array(found.reached), expected, rtol=1e-5)
    norms = {part.address: part.grad_norm for part in found.parts}
    for entry in Catalogue(exact):
        assert norms[entry.address] == pytest.approx(float(entry.parameter.grad.norm().detach()), rel=1e-6), (
            entry.address
        )
    for path in found.paths:
        assert sum(path.shares.values()) == pytest.approx(1, abs=1e-9)
    assert found.actual == pytest.approx(found.first_order, rel=0.2) and found.actual < 0


def test_a_mark_spelled_in_a_text_is_that_token_in_every_section(viewer, run_folder, monkeypatch):
    monkeypatch.setattr(Viewer, "marks", True)  # as a masked model has it
    for text in ("the [UNK] day", "the [UNK] day " * 12):  # the second does not fit
        shown = forward(viewer, text, None, layers=[0])
        assert shown.tokens[4:6] == ("[UNK]", " ")
        assert backward(viewer, text, None).tokens == shown.tokens[:-1]
        assert in_context(viewer, text, 4, None).tokens[: len(shown.tokens)] == shown.tokens


def test_a_report_carries_the_layers_that_fit(viewer, run_folder, monkeypatch):
    report = read_report(run_folder.folder, [TEXT])
    assert report.forward.text == TEXT and [layer.layer for layer in report.forward.layers] == [0, 1, 2]
    monkeypatch.setattr("qkv.views.sections.forward.CARRIED_BYTES", 200_000)
    assert layers_that_fit(viewer, 24) == [0, 2]


def test_patching_on_a_page_is_the_instrument_s(viewer, model):
    other = TEXT.replace("day", "way")
    shown = patched(viewer, TEXT, other, None)
    found = patch(model, *(Asked(viewer.words(text, 99).ids, [*text], len(text) - 1) for text in (TEXT, other)))
    assert shown.tokens == tuple(TEXT) and shown.others == tuple(other) and shown.position == len(TEXT) - 1
    assert shown.odds == pytest.approx(found.odds) and shown.shares.keys() == found.shares.keys()
    for kind, shares in found.shares.items():
        np.testing.assert_allclose(array(shown.shares[kind]), shares.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(array(shown.heads), found.heads.numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(UserError, match="expected as many"):
        patched(viewer, TEXT, TEXT[1:], None)


def test_who_writes_the_answer_on_a_page_is_the_instrument_s(viewer, model):
    shown = written(viewer, TEXT, 6, None)
    found = direct(model, Asked(viewer.words(TEXT, 99).ids, [*TEXT], 6))
    assert found is not None and found.heads is not None and found.mlp is not None
    assert (shown.position, shown.tokens) == (6, tuple(TEXT)) and shown.log_odds == pytest.approx(found.log_odds)
    for part, values in ((shown.heads, found.heads), (shown.mixer, found.mixer), (shown.mlp, found.mlp)):
        np.testing.assert_allclose(array(part), values.numpy(), rtol=1e-5, atol=1e-6)
    total = shown.embed + shown.biases + float(array(shown.heads).sum() + array(shown.mlp).sum())
    assert total == pytest.approx(shown.log_odds, abs=1e-5)
    with pytest.raises(UserError, match="there is no token 99"):
        written(viewer, TEXT, 99, None)


@pytest.mark.parametrize("pool", ["mean", "first"])
def test_a_classifier_is_followed_to_its_class(tmp_path, pool):
    words, draws = "sea wind hill town road rain stone light".split(), np.random.default_rng(0)
    rows = [f"{'good' if i % 2 else 'bad'} day {' '.join(draws.choice(words, 6))}\t{i % 2}" for i in range(80)]
    table = tmp_path / "t.tsv"
    table.write_text("\n".join(["text\tlabel", *rows]))
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 2, "layout.pool": pool}
    options = dict(task="classify", steps=2, threads=1, precision="fp32", set=sizes, report=False)
    run = qkv.train(table, out=tmp_path / "run", **options)
    viewer = Viewer(run.path)
    found, model = Desk(viewer).answer("forward", {"text": "good day 3"}), viewer.model()
    with torch.inference_mode():
        logits, record = model.forward_recorded(viewer.words("good day 3", 48).ids)
        h = record["norm_f"][0]
        h = h.mean(0) if pool == "mean" else torch.tanh(h[0] @ model.head.W_pool + model.head.b_pool)
        chances = (h @ model.head.W_cls + model.head.b_cls).softmax(-1)
    torch.testing.assert_close(chances, logits[0].softmax(-1))
    best = int(chances.argmax())
    assert found.top_tokens[0][0] == viewer.config.model.classes[best]
    np.testing.assert_allclose(array(found.top), chances.sort(descending=True).values[None], rtol=1e-5)
    assert found.pooled == {"mean": "the mean over tokens", "first": "the first token"}[pool]
    assert found.formulas["prediction"].startswith("softmax(" + {"mean": "mean(", "first": "tanh("}[pool])
    assert found.losses is None and {"backward", "patch", "written"}.isdisjoint(Desk(viewer).can)
    changed = Desk(viewer).answer("forward", {"text": "good day 3", "changes": ["L0.W_V=zero"]})
    assert not array(changed.layers[0].v).any()
    assert any("linear model" in note for note in found.notes) == (run.path / "linear.safetensors").is_file()
