"""One text all the way through the user's model: every activation of a layer, and what is predicted at each position.

Everything comes from the model's own recorded forward pass. A page that can ask gets the layer it shows; a report
carries the layers that fit. The way back (`backward`) is the gradient of the text's own loss, in float64.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.errors import UserError
from qkv.inspection.gradient_step import one_step
from qkv.inspection.one_text import one_text
from qkv.instruments.gradients import Parts
from qkv.models.layout import ADDED
from qkv.tasks import find_task
from qkv.tasks.text import TextTask
from qkv.views.payloads import Backward, ForwardLayer, ForwardText, PathShare, StepPart
from qkv.views.report.packed import Packed, pack
from qkv.views.sections.formulas import answer_formula, embed_formula, layer_formulas
from qkv.views.viewer import Viewer, Words

__all__ = ["LONGEST_CARRIED", "LONGEST_FORWARD", "backward", "forward", "layers_that_fit"]

LONGEST_FORWARD = 48
"""Tokens of a text that is followed through the model."""
LONGEST_CARRIED = 24
"""The same in a report."""
CARRIED_BYTES = 1_300_000
N_TOP = 8


def forward(
    viewer: Viewer,
    text: str,
    step: int | None,
    *,
    layers: Sequence[int] | None = None,
    changes: Sequence[str] = (),
    longest: int = LONGEST_FORWARD,
) -> ForwardText:
    """Follow `text` through the model of a step, with `changes` made first; `layers` None is all of them.

    Raises UserError for a text that is too short, a layer that is not there, or a change that does not fit.
    """
    sizes = viewer.config.model.sizes
    chosen = range(sizes.n_layers) if layers is None else layers
    if any(not 0 <= layer < sizes.n_layers for layer in chosen):
        raise UserError(f"there is no layer {max(chosen)}; this model has layers 0 to {sizes.n_layers - 1}")
    task = find_task(viewer.config.task)
    if not isinstance(task, TextTask):
        raise UserError(f"the task {task.name} predicts no token at each position; expected a causal or masked model")
    words = viewer.words(text, longest)
    model = viewer.model(step, changes)
    with torch.inference_mode():
        logits, record = model.forward_recorded(words.ids)
    logs = logits[0].double().log_softmax(-1)
    top = logs.topk(min(N_TOP, logs.shape[-1]))
    losses = _losses(viewer, words, logs)
    attention = model.blocks[0].attention  # None where an LSTM or a mean stands in its place
    layout, scale = viewer.config.model.layout, float(attention.scale) if attention else None
    return ForwardText(
        text=text,
        tokens=words.tokens,
        n_all=words.n_all,
        step=viewer.nearest(step),
        changes=tuple(changes),
        changed=viewer.changed(step, changes),
        causal=viewer.causal,
        n_layers=sizes.n_layers,
        n_heads=sizes.n_heads if attention else 0,
        n_kv_heads=sizes.n_kv_heads if attention else 0,
        scale=scale,
        embed=_packed(record["embed"][0]),
        layers=tuple(
            _layer(record, layer, layer_formulas(layout, layer, scale=scale, causal=viewer.causal)) for layer in chosen
        ),
        losses=None if losses is None else pack(losses),
        loss=None if losses is None else float(np.nanmean(losses)),
        top_tokens=tuple(tuple(viewer.tokenizer.token(int(i)) for i in row) for row in top.indices),
        top=pack(top.values.exp().numpy()),
        formulas={
            "embed": embed_formula(layout, sizes),
            "prediction": answer_formula(layout, sizes.n_layers, bias=model.head.b_U is not None),
        },
        notes=tuple(_notes(viewer)),
    )


def _packed(tensor: Tensor) -> Packed:
    return pack(tensor.float().numpy())


def _layer(record: dict[str, Tensor], layer: int, formulas: dict[str, str]) -> ForwardLayer:
    def of(name: str) -> Packed | None:
        found = record.get(f"L{layer}.{name}")
        if found is None:
            return None
        hidden = found[0].isinf() if name == "scores" else torch.tensor(False)
        return _packed(torch.where(hidden, math.nan, found[0]))

    x, resid_post = of("x"), of("resid_post")
    assert x is not None and resid_post is not None, "every block has these two"
    attention = {name: of(name) for name in ("q", "k", "v", "scores", "pattern", "z", "attn_out")}
    others = {name: of(name) for name in ("mix_out", "resid_mid", "mlp_out")}
    return ForwardLayer(layer=layer, x=x, resid_post=resid_post, formulas=formulas, **attention, **others)


def _losses(viewer: Viewer, words: Words, logs: Tensor) -> np.ndarray | None:
    """Nats that each position's next token costs, float64 [pos], NaN at the last; None where none is predicted."""
    ids = words.ids[0]
    if not viewer.causal or len(ids) < 2:
        return None
    nats = -logs[:-1].gather(1, ids[1:, None])[:, 0]
    return np.append(nats.numpy(), np.nan)


def _notes(viewer: Viewer) -> list[str]:
    """What a reader of textbooks would look for in vain."""
    layout = viewer.config.model.layout
    notes = [
        (
            layout.norm_place == "pre" and layout.norm != "none",
            "x is taken after the norm that stands before attention.",
        ),
        (
            layout.qk_norm,
            "q and k are shown after QK-norm, as they enter the scores: they are not x W_Q and x W_K alone.",
        ),
        (layout.positions == "rotary", "q and k are shown after the rotary turn by their position."),
        (layout.mixer == "lstm", "An LSTM stands in attention's place: mix_out is its state after each token."),
        (layout.mixer == "mean", "A mean stands in attention's place: mix_out is the mean of all x that may be seen."),
        (layout.positions in ADDED, "Rows of W_E have their position added before layer 0."),
    ]
    return [sentence for holds, sentence in notes if holds]


def layers_that_fit(viewer: Viewer, n_tokens: int) -> list[int]:
    """Layers that a report can carry: all, else the first, the last, and as many between them as fit."""
    sizes = viewer.config.model.sizes
    inner = sizes.n_heads * sizes.d_head
    attention = n_tokens * 4 * inner + 2 * sizes.n_heads * n_tokens**2
    one = n_tokens * 5 * sizes.d_model + (attention if viewer.config.model.layout.mixer == "attention" else 0)
    section = max(1, int(CARRIED_BYTES / (one * 4 * 4 / 3)))
    order = [0, sizes.n_layers - 1, *range(1, sizes.n_layers - 1)]
    return sorted(set(order[:section]))


def backward(viewer: Viewer, text: str, step: int | None, changes: Sequence[str] = ()) -> Backward:
    """How the gradient of this text's mean loss reaches each token and each matrix, by path, and what a step would buy.

    Raises UserError for a text that does not fit one window, or a task that predicts no tokens.
    """
    config = viewer.config
    words = viewer.words(text, LONGEST_FORWARD)
    one = one_text(find_task(config.task), viewer.as_read(words), config.model.sizes, text)
    found = one_step(viewer.model(step, changes), find_task(config.task), one, vocabulary=viewer.tokenizer.readable)
    first = found.path.blocks[0]
    return Backward(
        tokens=tuple(one.tokens),
        loss=found.loss,
        rate=found.rate,
        reached=pack(first.total[0].norm(dim=-1).numpy()),
        paths=tuple(_paths(parts) for parts in found.path.blocks),
        by_token={name: pack(values[0].numpy()) for name, values in first.shares_by_row().items()},
        crossed={str(n): share for n, share in found.path.crossed.items()},
        parts=tuple(
            StepPart(
                address=part.address,
                norm=part.norm,
                grad_norm=part.grad_norm,
                first_order=part.descent.first_order,
                actual=part.descent.actual,
            )
            for part in found.parts
        ),
        first_order=found.descent.first_order,
        actual=found.descent.actual,
    )


def _paths(parts: Parts) -> PathShare:
    return PathShare(address=parts.address, norm=parts.norm, shares={k: _finite(v) for k, v in parts.shares.items()})


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None
