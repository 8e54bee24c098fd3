"""Formulas of the Forward section, read as Python: each gives the numbers that it stands under, in every layout."""

import re

import pytest
import torch
from torch.nn.functional import gelu

from qkv.models.layout import Layout
from qkv.views.report.report import write_report
from qkv.views.sections.forward import forward, layer_formulas
from qkv.views.viewer import Viewer

TEXT = "the day and the night"
HEADS = 4
STAGES = ("x", "q", "k", "v", "attn_out", "resid_mid", "mlp_out", "resid_post")
LEARNED = {"positions": "learned"}
LAYOUTS = {
    "pre": LEARNED | {"norm": "layer", "mlp": "gelu", "bias": True},
    "post": LEARNED | {"norm": "layer", "norm_place": "post", "norm_e": True, "mlp": "gelu", "bias": True},
    "scaled": LEARNED | {"norm_place": "post", "embed_scale": True, "head_bias": True, "mlp": "relu"},
    "parallel": LEARNED | {"parallel": True, "qk_norm": True},
    "transform": LEARNED | {"norm": "layer", "mlp": "gelu", "bias": True, "head_transform": True},
    "transform alone": LEARNED | {"norm": "none", "mlp": "gelu", "head_transform": True},
    "bare": {"positions": "none", "norm": "none", "skip": False, "attention_bias": "qkv"},
}


def evaluated(formula, names):
    """Its value, without the words behind a comma."""
    words = formula.split(", ")[0].replace("× √d_model", "* 4")
    words = re.sub(r"(?<=[\w)\]]) (?=W_)", " @ ", words)
    return eval(re.sub(r"L\d+\.\w+", r"record['\g<0>']", words), dict(names))


def by_head(norm):
    """A norm of each head, of heads that lie side by side."""
    return lambda joined: norm(joined.unflatten(-1, (HEADS, -1))).flatten(-2)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_each_formula_gives_the_numbers_of_its_stage(make, layout):
    run = make(layout=layout, telemetry=False, d_model=16, d_mlp=32, d_head=4)
    viewer = Viewer(run.folder)
    found, model = forward(viewer, TEXT, None), viewer.model()
    ids = torch.as_tensor(run.tokenizer.encode(TEXT))[None]
    with torch.inference_mode():
        logits, record = model.forward_recorded(ids)
        names = {"record": record, "token": ids, "position": torch.arange(len(TEXT)), "norm_f": model.norm_f}
        names |= {"norm_e": model.embedding.norm_e, "softmax": lambda scores: scores.softmax(-1)}
        names |= {"norm_u": model.head.norm_u, "gelu": gelu}
        names |= dict([*model.embedding.named_parameters(), *model.head.named_parameters()])
        torch.testing.assert_close(evaluated(found.formulas["embed"], names), record["embed"])
        torch.testing.assert_close(evaluated(found.formulas["prediction"], names), logits.softmax(-1))
        for layer in found.layers:
            block, stem = model.blocks[layer.layer], f"L{layer.layer}."
            here = {name.removeprefix(stem): values for name, values in record.items() if name.startswith(stem)}
            assert set(STAGES) - set(here) == ({"resid_mid"} if layout.get("parallel") else set())
            parts = names | {"embed": record["embed"], "MLP": block.mlp} | here
            parts |= dict([*block.named_children(), *block.attention.named_parameters()])
            parts |= {"qnorm": by_head(block.attention.qnorm), "knorm": by_head(block.attention.knorm)}
            parts["z"] = here["z"].transpose(1, 2).flatten(2)
            for name in (name for name in STAGES if name in here):
                made = evaluated(layer.formulas[name], parts)
                made = made.unflatten(-1, (HEADS, -1)).transpose(1, 2) if name in "qkv" else made
                torch.testing.assert_close(made, here[name], msg=lambda told, at=stem + name: f"{at}: {told}")


def test_what_is_not_a_product_alone_is_said():
    told = layer_formulas(Layout(positions="rotary", qk_norm=True, mlp="none"), 2, scale=0.25, causal=True)
    assert told["q"] == "qnorm(x W_Q), turned by its position" and told["v"] == "x W_V"
    assert told["scores"] == "q kᵀ × 0.25, the future masked"
    assert told["resid_mid"] == "L1.resid_post + attn_out" and told["resid_post"] == "resid_mid"
    assert layer_formulas(Layout(), 0, scale=1.0, causal=False)["scores"] == "q kᵀ"


@pytest.mark.browser
def test_a_page_shows_the_formulas_of_its_model(look, make, tmp_path):
    page = look(write_report(make(layout=LAYOUTS["post"], telemetry=False).folder, tmp_path / "r.html", texts=[TEXT]))
    shown = page.locator("#forward .stage").evaluate_all(
        "(all) => all.map((e) => [e.dataset.stage, e.querySelector('.stage-formula').textContent])"
    )
    assert dict(shown)["resid_mid"] == "norm1(embed + attn_out)" and dict(shown)["x"] == "embed"
    assert shown[-1] == [None, "softmax(L2.resid_post W_U)"]
