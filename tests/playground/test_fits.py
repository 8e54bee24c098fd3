"""Which runs the playground says it can go on with: those alone whose model its engine computes."""

import dataclasses

from qkv.config import to_dict
from qkv.models import Sizes
from qkv.presets import PRESETS


def test_a_model_with_parts_that_the_engine_lacks_is_refused_by_name(run_node):
    layout = PRESETS["textbook"].layout
    sizes = dataclasses.asdict(Sizes(d_vocab=60, d_model=16, n_layers=1, n_heads=2, n_ctx=32).resolved())
    usual = {"kind": "CausalLM"} | sizes | to_dict(layout)
    others = {"mixer": "mean", "attention_bias": "qkv", "head_bias": True, "head_transform": True}
    found = run_node("fits.mjs", [usual, *({**usual, name: value} for name, value in others.items())])
    assert found[0] == "" and all(name in said for name, said in zip(others, found[1:], strict=True)), found
