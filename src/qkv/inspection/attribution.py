"""Direct attribution of an answer: what each part writes into it, in nats that sum to the log-odds exactly.

The stream before the last norm is a sum: the embedding, and what each layer's attention (head by head) and MLP add. The
norm divides all of them by one number, and the output matrix is linear, so with r = resid_post of the last layer where
the answer is asked for

    log p(a) - log p(b) = sum over parts of <part, u> + biases,    u = C diag(gain) (W_U[:, a] - W_U[:, b]) / scale(r),

C taking the mean away under a LayerNorm (scale: its standard deviation) and doing nothing under an RMSNorm (scale: its
root mean square). It tells who writes the answer, not who makes it possible: a head of layer 0 that others read from
may write nothing here (see `patching`). And the scale is that of the whole: without a part it would be another.

Source: the sum of Elhage et al. 2021 (transformer-circuits.pub/2021/framework), with the norm's scale held as Wang et
al. 2022 (arXiv 2211.00593) hold it. Null: a part that knows nothing of the two answers writes next to 0.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from qkv.inspection.one_text import blocks_of, float64_copy
from qkv.inspection.patching import Asked
from qkv.models.layout import Layout
from qkv.models.norms import LayerNorm, RMSNorm
from qkv.models.zoo import LanguageModel
from qkv.shapes import Float64


@dataclass(frozen=True, eq=False)
class Direct:
    """Who writes the answer, in nats of log p(a) - log p(b), float64."""

    position: int
    """Where it is answered."""
    answers: tuple[int, int]
    """a and b."""
    log_odds: float
    """The sum of all that follows."""
    embed: float
    """The row of W_E (with its position, where that is added)."""
    mixer: Float64[Tensor, "n_layers"] = field(repr=False)
    """What attention, or what stands in its place, adds."""
    heads: Float64[Tensor, "n_layers n_heads"] | None = field(repr=False)
    """Each head's part of it; what is left of `mixer` is b_O. None without attention."""
    mlp: Float64[Tensor, "n_layers"] | None = field(repr=False)
    """None without MLPs."""
    biases: float
    """Of the last norm and of the output."""


def no_sum(layout: Layout) -> str:
    """Why answers of a language model of this layout are no sums of what its parts write; empty where they are."""
    breaks = {
        f"norm_place={layout.norm_place}": layout.norm_place != "pre",
        "skip=false": not layout.skip,
        "head_transform=true": layout.head_transform,
        f"logit_cap={layout.logit_cap:g}": layout.logit_cap,
        f"residual_factor={layout.residual_factor:g}": layout.residual_factor != 1,
    }
    return next((setting for setting, holds in breaks.items() if holds), "")


def direct(model: LanguageModel, text: Asked, answers: tuple[int, int] | None = None) -> Direct | None:
    """Who writes the answer to a text; without `answers`, a is the likeliest and b the next.

    None where the answer is no such sum (`no_sum`) or is to all positions at once; and of a model without layers.
    """
    if no_sum(model.layout) or text.position is None or not blocks_of(model):
        return None
    model, at = float64_copy(model).requires_grad_(False), text.position
    logits, record = model.forward_recorded(text.inputs)
    likeliest = logits[0, at].topk(2).indices.tolist()
    a, b = answers or (likeliest[0], likeliest[1])
    table = model.embedding.W_E
    assert table is not None, "a language model reads tokens"
    W_U = table.t() if model.head.W_U is None else model.head.W_U
    blocks = blocks_of(model)
    last = blocks[-1].name
    u, biases = _towards(
        model.norm_f, record[f"{last}.resid_post"][0, at], (W_U[:, a] - W_U[:, b]) * model.layout.logit_factor
    )
    if model.head.b_U is not None:
        biases += float(model.head.b_U[a] - model.head.b_U[b])

    def written(part: str) -> Tensor | None:
        names = [f"{block.name}.{part}" for block in blocks]
        return torch.stack([record[name][0, at] @ u for name in names]) if names[0] in record else None

    mixer, heads = written("attn_out"), None
    if mixer is not None:
        attentions = [(block.name, block.attention) for block in blocks if block.attention is not None]
        each = [(record[f"{name}.z"][0, :, at], attention.W_O) for name, attention in attentions]
        heads = torch.stack([torch.einsum("hd,hdm,m->h", z, W_O.view(*z.shape, -1), u) for z, W_O in each])
    else:
        mixer = written("mix_out")
    assert mixer is not None, "every layer mixes positions"
    return Direct(
        position=at,
        answers=(a, b),
        log_odds=float(logits[0, at, a] - logits[0, at, b]),
        embed=float(record["embed"][0, at] @ u),
        mixer=mixer,
        heads=heads,
        mlp=written("mlp_out"),
        biases=biases,
    )


def _towards(norm: nn.Module, r: Tensor, w: Tensor) -> tuple[Tensor, float]:
    """u [d_model] with norm(r) w = r u + bias, the norm's scale at r held, and that bias."""
    if isinstance(norm, RMSNorm):
        return norm.gain * w / (r.square().mean() + norm.eps).sqrt(), 0.0
    if isinstance(norm, LayerNorm):
        through = w if norm.gain is None else norm.gain * w
        u = (through - through.mean()) / (r.var(unbiased=False) + norm.eps).sqrt()
        return u, 0.0 if norm.bias is None else float(norm.bias @ w)
    return w, 0.0
