"""The logit lens: what the model would answer if it ended after each layer.

The residual stream after a layer goes straight through the final norm (where there is one) and the output matrix:
logits_l = norm_f(resid_l) W_U + b_U. A layer that speaks another basis than the last reads worse here than it is, so a
bad reading early proves nothing; a good one does. Source: nostalgebraist 2020, "interpreting GPT: the logit lens".
Null: an answer that ignores the text has the unigram entropy at best, and one that knows nothing ln d_vocab nats.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from qkv.inspection.one_text import OneText, float64_copy
from qkv.models.zoo import LanguageModel
from qkv.shapes import Float64, Int64

N_TOP = 5


@dataclass(frozen=True, eq=False)
class LensLayer:
    """The answers after one layer."""

    address: str
    """`embed`, `L0.resid_post`, ...: the last is what the model answers."""
    loss: float
    """Mean nats per target of the text."""
    kl: float
    """Mean over positions of KL(last layer's answer || this one), nats, 0 and up."""
    agreement: float
    """Share of positions whose likeliest token is that of the last layer, 0 to 1."""
    top: Int64[Tensor, "pos n_top"] = field(repr=False)
    """The likeliest tokens, at most 5, best first."""
    top_probability: Float64[Tensor, "pos n_top"] = field(repr=False)


def logit_lens(model: LanguageModel, text: OneText) -> list[LensLayer]:
    """Every layer's answers to one text, from the embedding to the last layer, in float64."""
    model, batch = float64_copy(model), text.batch
    with torch.no_grad():
        _, record = model.forward_recorded(batch.inputs, batch.mask)
        names = ["embed", *(f"{block.name}.resid_post" for block in model.blocks)]
        answers = [model.unembed(model.norm_f(record[name]))[0].log_softmax(-1) for name in names]
    last = answers[-1]
    where = slice(None) if batch.positions is None else batch.positions
    found = []
    for name, answer in zip(names, answers, strict=True):
        top = answer.topk(min(N_TOP, answer.shape[-1]), dim=-1)
        found.append(
            LensLayer(
                address=name,
                loss=-float(answer[where].gather(1, batch.targets[:, None]).mean()),
                kl=float((last.exp() * (last - answer)).sum(-1).mean()),
                agreement=float((answer.argmax(-1) == last.argmax(-1)).double().mean()),
                top=top.indices,
                top_probability=top.values.exp(),
            )
        )
    return found
