"""What each part writes sums to the log-odds; heads are z W_O; what is no such sum is left out."""

import dataclasses

import pytest
import torch

from qkv.inspection.attribution import direct
from qkv.inspection.one_text import float64_copy
from qkv.inspection.patching import Asked
from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.models.matrices import Catalogue

SIZES = Sizes(d_vocab=11, d_model=16, n_layers=3, n_heads=4, n_kv_heads=2, n_ctx=8)
IDS = torch.tensor([[3, 1, 4, 1, 5]])
LAYOUTS = [
    {},
    {"norm": "layer", "tied": False, "bias": True, "positions": "learned"},
    {"norm": "none"},
    {"mlp": "none", "qk_norm": True},
    {"parallel": True, "mlp": "swiglu"},
    {"mixer": "lstm", "positions": "none"},
    {"positions": "alibi"},
    {"positions": "relative", "score_cap": 2.0},
    {"window": 2, "window_layers": "wf", "sinks": True},
    {"score_factor": 0.3, "rope_layers": "rn"},
    {"embedding_factor": 2.0, "logit_factor": 0.5},
    {"norm": "layer", "norm_gain": False, "norm_bias": "none"},
    {"first_norm": False, "mlp": "geglu"},
    {"shared_layers": True},
    {"parallel": True, "shared_norm": True, "attention_bias": "out"},
]


def made(**layout):
    sizes = SIZES if "mixer" not in layout else dataclasses.replace(SIZES, n_heads=1, n_kv_heads=1)
    config = ModelConfig(kind="CausalLM", sizes=sizes, layout=Layout(**({"start": "normal"} | layout)))
    model = build(config.resolved(), 3)
    torch.manual_seed(0)
    for entry in Catalogue(model):  # biases and gains too
        entry.parameter.data += 0.3 * torch.randn(entry.parameter.shape)
    return model


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("answers", [None, (2, 7)])
def test_the_parts_sum_to_the_log_odds(layout, answers):
    model = made(**layout)
    found = direct(model, Asked(IDS, [*"abcde"], 4), answers)
    assert found is not None
    logits = float64_copy(model)(IDS)[0, 4].detach()
    a, b = answers or logits.topk(2).indices.tolist()
    assert found.answers == (a, b) and found.log_odds == pytest.approx(float(logits[a] - logits[b]), abs=1e-12)
    mlp = 0.0 if found.mlp is None else float(found.mlp.sum())
    assert found.embed + float(found.mixer.sum()) + mlp + found.biases == pytest.approx(found.log_odds, abs=1e-10)
    assert (found.mlp is None) == (layout.get("mlp") == "none") and (found.heads is None) == ("mixer" in layout)


def test_heads_and_b_O_are_what_attention_writes():
    model = made(norm="layer", bias=True, tied=False)
    found = direct(model, Asked(IDS, [*"abcde"], 4), (2, 7))
    assert found is not None and found.heads is not None
    exact = float64_copy(model)
    record = exact.forward_recorded(IDS)[1]
    r = record["L2.resid_post"][0, 4]
    w = exact.norm_f.gain * (exact.head.W_U[:, 2] - exact.head.W_U[:, 7])
    spread = (r.var(unbiased=False) + exact.norm_f.eps).sqrt()
    for layer, block in enumerate(exact.blocks):
        for head in range(4):
            part = record[f"L{layer}.z"][0, head, 4] @ block.attention.W_O[4 * head : 4 * head + 4]
            by_hand = ((part - part.mean()) @ w / spread).detach()
            assert float(found.heads[layer, head]) == pytest.approx(float(by_hand), abs=1e-10)
        b_O = block.attention.b_O.detach()
        left = float(found.mixer[layer] - found.heads[layer].sum())
        assert left == pytest.approx(float(((b_O - b_O.mean()) @ w / spread).detach()), abs=1e-10)


@pytest.mark.parametrize(
    "layout",
    [
        {"norm_place": "post", "norm": "layer"},
        {"skip": False, "norm": "none"},
        {"logit_cap": 3.0},
        {"residual_factor": 0.5},
        {"norm_place": "both"},
    ],
)
def test_what_is_no_sum_is_left_out(layout):
    assert direct(made(**layout), Asked(IDS, [*"abcde"], 4)) is None


def test_an_answer_to_all_positions_at_once_is_left_out():
    assert direct(made(), Asked(IDS, [*"abcde"])) is None
