"""The pooled head: a mean over real positions, one product; the body is that of the language models."""

import pytest
import torch
import torch.nn.functional as F

from qkv.errors import ConfigError
from qkv.laws import Scale
from qkv.models import build
from qkv.models.embedding import pool
from qkv.models.layout import Layout, ModelConfig, Sizes
from qkv.models.matrices import Catalogue
from qkv.presets import PRESETS, model_config

SIZES = Sizes(d_vocab=11, d_model=16, n_layers=2, n_heads=2, n_ctx=12)
IDS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])


def made(kind: str = "Classifier", **layout):
    config = ModelConfig(kind=kind, sizes=SIZES, layout=Layout(**{"start": "gpt2", **layout}), classes=("a", "b", "c"))
    return build(config, 1)


def test_pooling_is_the_mean_of_the_positions_of_each_text() -> None:
    h = torch.randn(2, 4, 3)
    owners = torch.tensor([[0, 0, 1, 9], [2, -1, 1, 2]])
    expected = torch.stack([h[0, :2].mean(0), (h[0, 2] + h[1, 2]) / 2, (h[1, 0] + h[1, 3]) / 2])
    torch.testing.assert_close(pool(h, owners, 3), expected)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["Classifier", "CausalClassifier"])
def test_the_answer_is_the_formula_over_the_body_of_the_language_model(kind: str) -> None:
    model = made(kind)
    body = build(
        ModelConfig(kind={"Classifier": "MaskedLM"}.get(kind, "CausalLM"), sizes=SIZES, layout=Layout(start="gpt2")), 1
    )
    h = body.hidden(IDS)  # starts are by seed and address, so both bodies are the same
    expected = h.mean(1) @ model.head.W_cls + model.head.b_cls
    torch.testing.assert_close(model(IDS), expected)
    torch.testing.assert_close(model.forward_recorded(IDS)[0], expected, rtol=1e-4, atol=1e-5)
    assert model.forward_with(IDS, {"L0.attn_out": torch.zeros(1)}).shape == (2, 3)


@torch.no_grad()
def test_padding_on_either_side_changes_nothing() -> None:
    model = made(positions="learned")
    alone = model(IDS[:1, :4])
    for before, after in ((0, 2), (2, 0)):
        ids = F.pad(IDS[:1, :4], (before, after), value=7)
        mask = F.pad(torch.ones(1, 4, dtype=torch.bool), (before, after), value=False)
        torch.testing.assert_close(model(ids, mask), alone, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", [p.name for p in PRESETS.values() if "encoder" in p.stacks])
def test_every_matrix_is_catalogued_once_and_gets_gradient(name: str) -> None:
    preset, scale = PRESETS[name], Scale(d_model=16, n_layers=2, n_ctx=12)
    model = build(model_config(preset, "Classifier", 11, scale, {}, ("a", "b")), 0)
    catalogue = Catalogue(model)
    assert sum(entry.parameter.numel() for entry in catalogue) == sum(p.numel() for p in model.parameters())
    assert {"W_cls", "b_cls"} == set(catalogue.groups["head"]) and catalogue.aliases == {}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)) * 0.3)
    F.cross_entropy(model(IDS), torch.tensor([0, 1])).backward()
    assert [e.address for e in catalogue if e.parameter.grad is None or not e.parameter.grad.any()] == []


def test_a_classifier_has_at_least_two_classes_and_nothing_else_has_any() -> None:
    for kind, classes in (("Classifier", ()), ("Classifier", ("a",)), ("MaskedLM", ("a", "b"))):
        with pytest.raises(ConfigError, match="classes"):
            ModelConfig(kind=kind, sizes=SIZES, classes=classes).resolved()  # type: ignore[arg-type]
