"""Sizes at which attention and an LSTM have as many parameters, for `attention-or-lstm`."""

import dataclasses
from collections.abc import Mapping

from qkv.jsontypes import JsonObject
from qkv.models.counting import n_parameters, with_parameters
from qkv.models.layout import ModelConfig, Sizes
from qkv.presets import find as find_preset
from qkv.studies.engine.design import Pairs, Scale, Text
from qkv.studies.question import Ask

_TOLD = 70
"""Tokens of the vocabulary of a text in characters that is not read."""
_RECURRENT = tuple(
    (name, getattr(find_preset("lstm", "causal").layout, name))
    for name in ("mixer", "positions", "norm", "mlp", "skip", "start")
)
KINDS: Mapping[str, Pairs] = {"attention": (("start", "xavier"), ("positions", "rotary")), "LSTM": _RECURRENT}
"""The layouts of the two, as in the question's table."""


def matched(ask: Ask, texts: dict[str, Text], scale: Scale) -> JsonObject:
    """Of each text the widths of the two, how many parameters each has, and by how many percent the LSTM has more."""
    found = {}
    for name, text in texts.items():
        d_model, d_mlp, counts = _widths(ask, text, scale)
        more = 100 * (counts["LSTM"] / counts["attention"] - 1)
        found |= {f"d_model of {name}": d_model, f"d_mlp of {name}": d_mlp, f"more of {name}": more}
        found |= {f"{kind} of {name}": count for kind, count in counts.items()}
    return found


def _widths(ask: Ask, text: Text, scale: Scale) -> tuple[int, int, dict[str, int]]:
    """The nearest LSTM, the MLP that makes up for the rest, and the parameters of both.

    The MLP stays within an eighth of the usual 4 d_model; what a pair of coordinates of an LSTM brings is more than
    that where the tables are of thousands of tokens.
    """
    told = ask.named and text.stream == "text"
    d_vocab = (text.vocab or _TOLD) if told else ask.corpus(text).tokenizer.d_vocab
    shape: dict[str, int] = {name: vars(scale)[name] for name in ("d_model", "n_layers", "n_heads", "n_ctx")}

    def model(kind: str, **sizes: int) -> ModelConfig:
        layout = dataclasses.replace(find_preset("textbook", "causal").layout, **dict(KINDS[kind]))
        return ModelConfig(kind="CausalLM", sizes=Sizes(**(shape | sizes), d_vocab=d_vocab), layout=layout)

    usual = 4 * scale.d_model
    one, more = (n_parameters(model("attention", d_mlp=usual + i)) for i in range(2))
    near = with_parameters(model("LSTM", n_heads=1), one).sizes.d_model
    widths = {w: n_parameters(model("LSTM", n_heads=1, d_model=w)) for w in (near - 2, near, near + 2)}
    d_model = min(widths, key=lambda w: abs(widths[w] - one))
    d_mlp = usual + min(max(round((widths[d_model] - one) / (more - one)), -usual // 8), usual // 8)
    return d_model, d_mlp, {"attention": n_parameters(model("attention", d_mlp=d_mlp)), "LSTM": widths[d_model]}
