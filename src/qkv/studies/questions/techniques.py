"""Which technique of today's small Transformers buys how much?

One model with all of them, and one more arm for each with that one left out: Muon, squared ReLU, QK-norm, rotary
positions, RMSNorm, an untied output matrix, block outputs that start at zero. The last arm is the textbook's model with
AdamW, which has none. All arms of one size make as many updates on the same tokens, so this measures what a technique
buys in loss; its cost in time is for benchmarks. Full: 0.8 M parameters, each arm at its own tuned rate. The arms known
to matter are repeated at 10 M parameters, at the rates of their small versions.
"""

import dataclasses
from collections.abc import Mapping

from qkv.studies.engine.design import Arm, Contrast, Design, Pairs, Scale
from qkv.studies.expectation import Expected
from qkv.studies.question import Ask, make_design, read_question
from qkv.studies.vocabulary import ABOVE, QUICK, Settings, arm, cost

MARGIN = 0.02
"""Nats per token: about a tenth of what separates good from poor recipes of one size."""
_ALL: Mapping[str, object] = {
    "positions": "rotary", "norm": "rms", "norm_eps": 1e-6, "mlp": "relu2", "qk_norm": True, "tied": False,
    "start": "zero_out",
}  # fmt: skip
_LEFT_OUT: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "GELU": ("GELU instead of squared ReLU", {"mlp": "gelu"}),
    "no QK-norm": ("q and k as they come", {"qk_norm": False}),
    "learned positions": ("learned positions instead of rotary ones", {"positions": "learned"}),
    "LayerNorm": ("LayerNorm instead of RMSNorm", {"norm": "layer", "norm_eps": 1e-5}),
    "tied": ("W_U is W_E transposed", {"tied": True}),
    "small start": ("all matrices start at N(0, 0.02), none at zero", {"start": "gpt2"}),
}
"""Arm -> what is done instead, and the fields of the layout for it."""
_BIG = "10 M: "
_BIG_ONES = ("all", "AdamW", "GELU", "no QK-norm", "learned positions", "textbook")
_MUON: Settings = {"optimizer": "muon", "lr": 0.02}


def _layout(less: Mapping[str, object]) -> Pairs:
    return tuple({**_ALL, **less}.items())


_ARMS = (
    arm("all", "all techniques together", _MUON, layout=_layout({})),
    arm("AdamW", "AdamW instead of Muon", layout=_layout({}), lr=0.01),
    *(arm(name, what, _MUON, layout=_layout(less)) for name, (what, less) in _LEFT_OUT.items()),
    arm("textbook", "none of them: the textbook's layout and start, AdamW", lr=0.01),
)


def _big(small: Arm) -> Arm:
    sizes = (("d_model", 384), ("n_layers", 6), ("n_heads", 6))
    return dataclasses.replace(
        small, name=f"{_BIG}{small.name}", what=f"{small.what}, 10 M parameters", tune=small.name, sizes=sizes
    )


def _left_out(one: Arm) -> Contrast:
    """What leaving one out costs; of large arms beside the large whole."""
    whole = f"{_BIG}all" if one.name.startswith(_BIG) else "all"
    expected = ABOVE if one.name.removeprefix(_BIG) in ("AdamW", "textbook") else Expected(above=-MARGIN)
    return cost(f"{one.name} - {whole}", one.what, one.name, whole, MARGIN, expected=expected)


def _design(ask: Ask) -> Design:
    arms = _ARMS if ask.quick else (*_ARMS, *(_big(small) for small in _ARMS if small.name in _BIG_ONES))
    order = sorted((one for one in arms if not one.name.endswith("all")), key=lambda one: one.name != "AdamW")
    full = Scale(d_model=128, n_layers=4, n_heads=4, n_ctx=128, batch_size=8, steps=300, val_tokens=32_768)
    return make_design(
        ask,
        study="techniques",
        scale=QUICK if ask.quick else full,
        arms=arms,
        contrasts=tuple(map(_left_out, order)),
        replicates=6,
    )


QUESTION = read_question("techniques", design=_design)
