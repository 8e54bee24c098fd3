"""The last layer's answer is the model's; the first knows the token only."""

import pytest
import torch

from qkv.inspection.lens import logit_lens
from qkv.inspection.one_text import OneText, float64_copy
from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.tasks import Batch

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
BATCH = Batch(IDS[:, :-1], IDS[0, 1:])


def made(**layout):
    sizes = Sizes(d_vocab=10, d_model=16, n_layers=2, n_heads=2, n_ctx=8)
    return build(ModelConfig(kind="CausalLM", sizes=sizes, layout=Layout(**({"start": "normal"} | layout))), 3)


@pytest.mark.parametrize("layout", [{}, {"norm": "layer", "norm_place": "post"}, {"norm": "none", "tied": False}])
def test_the_last_layer_s_answer_is_the_model_s(layout):
    model = made(**layout)
    found = logit_lens(model, OneText("", [], BATCH))
    logits = float64_copy(model)(BATCH.inputs)[0].detach()
    assert [layer.address for layer in found] == ["embed", "L0.resid_post", "L1.resid_post"]
    expected = float(torch.nn.functional.cross_entropy(logits, BATCH.targets))
    assert found[-1].loss == pytest.approx(expected, rel=1e-12)
    assert found[-1].kl == 0 and found[-1].agreement == 1
    assert found[-1].top[:, 0].equal(logits.argmax(-1))
    assert found[-1].top_probability[0, 0] == pytest.approx(float(logits[0].softmax(-1).max()))
    assert all(layer.kl > 0 for layer in found[:-1])


def test_a_layer_s_answer_is_that_of_the_model_cut_there():
    model = made()
    found = logit_lens(model, OneText("", [], BATCH))
    cut = float64_copy(model)
    cut.blocks = cut.blocks[:1]
    logits = cut(BATCH.inputs)[0].detach()
    assert found[1].loss == pytest.approx(float(torch.nn.functional.cross_entropy(logits, BATCH.targets)), rel=1e-12)
    assert found[1].top[:, 0].equal(logits.argmax(-1))


def test_the_embedding_s_answer_depends_on_the_token_alone():
    found = logit_lens(made(), OneText("", [], BATCH))
    assert BATCH.inputs[0, 1] == BATCH.inputs[0, 3] and found[0].top[1].equal(found[0].top[3])
