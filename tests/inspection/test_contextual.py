"""Contextual vectors against the recorded forward pass of each text alone."""

import numpy as np
import pytest
import torch

from qkv.errors import AddressError, UserError
from qkv.inspection.contextual import contextual_vectors, read_in_turn
from qkv.models import build
from qkv.models.layout import Layout, ModelConfig, Sizes


class Letters:
    """A token per character code."""

    around = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))

    def encode(self, text: str) -> np.ndarray:
        return np.array([ord(c) % 50 for c in text], dtype=np.int64)

    encode_whole = encode

    def token(self, i: int) -> str:
        return f"<{i}>"


LAYOUTS = {
    "causal": ("CausalLM", Layout(start="gpt2")),
    "masked": ("MaskedLM", Layout(positions="learned", norm="layer", start="bert", bias=True)),
    "post-norm": ("MaskedLM", Layout(positions="sinusoidal", norm="layer", norm_place="post", start="xavier")),
}


@pytest.fixture(params=LAYOUTS)
def model(request):
    kind, layout = LAYOUTS[request.param]
    sizes = Sizes(d_vocab=50, d_model=16, n_layers=2, n_heads=2, n_ctx=12)
    return build(ModelConfig(kind=kind, sizes=sizes, layout=layout), 0)


def test_every_layer_equals_the_recorded_pass_of_the_text_alone(model):
    texts = ["abc", "the cat sat", "x", "a longer one"]
    for text, found in zip(texts, contextual_vectors(model, Letters(), texts), strict=True):
        ids = torch.from_numpy(Letters().encode(text).astype(np.int64))[None]
        with torch.no_grad():
            _, record = model.forward_recorded(ids)
        assert found.text == text and len(found.tokens) == len(text) == len(found.ids)
        assert found.vectors.shape == (len(found.layers), len(text), 16)
        assert found.layers[:3] == ["embed", "L0.resid_post", "L1.resid_post"]
        for layer in found.layers:
            np.testing.assert_allclose(found.at(layer), record[layer][0].numpy(), atol=1e-5)
        assert ("norm_f" in found.layers) == (model.layout.norm_place == "pre")
        np.testing.assert_allclose(found.pooled, found.vectors.mean(1))


def test_texts_are_read_a_few_at_a_time(model):
    texts = ["abc", "the cat sat on", "x", "a longer one", "end"]
    some = list(read_in_turn(model, Letters(), texts, at_once=2))
    for one, other in zip(some, contextual_vectors(model, Letters(), texts), strict=True):
        assert one.text == other.text and one.layers == other.layers and (one.ids == other.ids).all()
        np.testing.assert_allclose(one.vectors, other.vectors, atol=1e-5)
    with pytest.raises(UserError, match=r"'' has no tokens \(text 3 of 3\), so"):
        list(read_in_turn(model, Letters(), ["a", "b", ""], at_once=1))


def test_the_last_layer_is_what_the_output_matrix_sees(model):
    (found,) = contextual_vectors(model, Letters(), ["the cat"])
    with torch.no_grad():
        logits = model(torch.from_numpy(found.ids)[None])[0]
        ours = model.unembed(torch.from_numpy(found.at(-1)))
    torch.testing.assert_close(ours, logits, atol=1e-5, rtol=1e-4)


def test_a_text_longer_than_the_context_is_read_in_windows_side_by_side(model):
    text = "abcdefghijklmnopqrstuvwxyz"
    (whole,) = contextual_vectors(model, Letters(), [text])
    parts = contextual_vectors(model, Letters(), [text[:12], text[12:24], text[24:]])
    np.testing.assert_allclose(whole.vectors, np.concatenate([p.vectors for p in parts], axis=1), atol=1e-5)


def test_a_text_without_tokens_and_an_unknown_layer_are_explained(model):
    with pytest.raises(UserError, match=r"'' has no tokens \(text 2 of 2\), so"):
        contextual_vectors(model, Letters(), ["a", ""])
    with pytest.raises(UserError, match="'' has no tokens, so"):
        contextual_vectors(model, Letters(), [""])
    (found,) = contextual_vectors(model, Letters(), ["a"])
    with pytest.raises(AddressError, match="L0.resid_post"):
        found.at("L0.resid_pots")
    with pytest.raises(AddressError, match="layer 9"):
        found.at(9)
    assert contextual_vectors(model, Letters(), []) == []
