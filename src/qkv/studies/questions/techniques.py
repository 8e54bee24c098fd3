"""Which technique of today's small Transformers buys how much?

One model with all of them, and one more arm for each with that one left out: Muon, squared ReLU, QK-norm, rotary
positions, RMSNorm, an output matrix of its own, outputs of blocks that start at zero. Last, the textbook's model with
AdamW, which has none. All arms of one size make as many updates on the same tokens, so this is what a technique buys in
loss; what it costs in time is for benchmarks. Full: 0.8 M parameters, each arm at a rate tuned for itself, and the arms
that are known to matter once more at 10 M, at the rates of their small ones.
"""

import dataclasses
from collections.abc import Mapping

from qkv.studies.engine.design import Arm, Contrast, Design, Pairs, Scale
from qkv.studies.question import Ask, Claim, Plain, Question, make_design
from qkv.studies.verdict.judging import Findings
from qkv.studies.vocabulary import QUICK, Settings, arm, cost
from qkv.words import amount

__all__ = ["QUESTION"]

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
    expected = "above 0" if one.name.removeprefix(_BIG) in ("AdamW", "textbook") else "not below 0"
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


def _together(findings: Findings) -> str:
    """What all techniques are worth together, in brackets; empty where that is not settled."""
    result = findings.effect("textbook - all").told
    if result.effect is None or result.verdict == "unresolved":
        return ""
    if result.verdict == "equivalent":
        return " (all techniques together buy nothing)"
    way = "behind" if result.effect > 0 else "ahead"
    return f" (the textbook's model with AdamW lies {amount(abs(result.effect), False)} nats {way})"


def _with(what: str) -> Plain:
    """Of one technique left out."""
    return Plain(
        above=f"With {what} the loss is {{effect}} nats a token higher.",
        below=f"With {what} the loss is {{effect}} nats a token lower.",
        slightly=f"With {what} the loss is almost exactly the same.",
        equivalent=f"With {what} the loss is the same but for what would not matter.",
        unresolved=f"Whether the loss is another with {what}, this run cannot tell.",
    )


QUESTION = Question(
    name="techniques",
    asks="Which technique of today's small Transformers buys how much?",
    answer=(
        "what leaving each one out costs in nats per token, after as many updates, each with a rate of its own (at 10 M"
        " parameters that of the small one)"
    ),
    falsified_by="A technique whose absence costs less than nothing, or an AdamW that keeps up with Muon.",
    literature=(
        "Each technique was published with an ablation of its own, at other sizes, on other texts and mostly with one"
        " seed. A ladder of all of them with a tuned rate for each arm and intervals over seeds has not been found"
        " published, at a million parameters or at ten; at ten the one here takes over the rates of the small arms."
    ),
    plain=Plain.of(
        above=(
            "A model trained by Muon is better after as many updates than one trained by AdamW, each at its own best"
            " rate."
        ),
        below=(
            "A model trained by AdamW is better after as many updates than one trained by Muon, each at its own best"
            " rate."
        ),
        same=(
            "Models trained by Muon and by AdamW are {almost exactly }as good after as many updates, each at its own"
            " best rate."
        ),
        unresolved="Whether Muon makes a better model than AdamW after as many updates, this run cannot tell.",
    ),
    also={
        "learned positions - all": _with("learned positions instead of rotary ones"),
        "tied - all": _with("one matrix as W_E and W_U instead of two"),
        "small start - all": _with("every matrix started small instead of some at zero"),
    },
    heard=(
        "A new technique, one seed, and a baseline whose learning rate nobody tuned again. Here every small arm has a"
        " rate of its own in every replicate, and what is left of each technique then stands in the table; large arms"
        " take over the rates of the small ones, which may not be their best."
    ),
    design=_design,
    claim=Claim(
        unresolved="Whether Muon is worth anything is not settled by this run{beside}; {ends}",
        equivalent="AdamW does as well as Muon where each has a rate of its own{beside}: {ends}",
        above="Muon makes a better model in as many updates{small}{beside}: {ends}",
        below="AdamW does better than Muon{small}{beside}: {ends}",
        ends="with AdamW in its place the loss changes by",
        small=", though by less than would matter",
        beside=_together,
    ),
)
