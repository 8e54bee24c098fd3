"""Attention of a live model of transformers, through ours."""

import dataclasses
from typing import Any

import numpy as np
import torch

from qkv.errors import ConfigError, UserError
from qkv.models.layout import require_attention
from qkv.words import many


def attention(model: Any, tokenizer: Any, text: str) -> "Attention":
    """Where every head of a live model of transformers looks on a text, whatever attention it runs with.

    The model's weights are copied into ours, which has a path that keeps patterns; the model itself stays as it is (no
    `attn_implementation="eager"`, no hooks). `tokenizer` is the model's; the text is framed as it frames it.

    Raises ConfigError for a model that `qkv import` does not read or that does not read one text (a translation's),
    UserError for a model without attention, or a text that is too long or empty.
    """
    from qkv.interop.mirror import mirror_of

    mirror = mirror_of(model)
    if mirror.config is None:
        raise ConfigError(f"{type(model).__name__} has no layout that qkv can run; it shows models that it can import")
    if mirror.config.kind == "EncoderDecoderLM" or mirror.config.patches is not None:
        raise ConfigError(
            f"{type(model).__name__} reads more than one text, or none; qkv.attention shows models that read one."
            " Save it, type qkv import FOLDER, and look at the run with qkv view"
        )
    require_attention(mirror.config.sizes, mirror.config.layout)
    ids = list(tokenizer(text)["input_ids"])
    n_ctx = mirror.config.sizes.n_ctx
    if not 0 < len(ids) <= n_ctx:
        raise UserError(f"the text has {many(len(ids), 'token')}; this model reads 1 to {n_ctx}")
    with torch.inference_mode():
        model_of_ours: Any = mirror.model
        _, record = model_of_ours.forward_recorded(torch.tensor([ids]))
    patterns = [record[f"L{layer}.pattern"][0].numpy() for layer in range(mirror.config.sizes.n_layers)]
    return Attention(tuple(tokenizer.convert_ids_to_tokens(ids)), np.stack(patterns))


@dataclasses.dataclass(frozen=True, eq=False)
class Attention:
    """Every head's pattern on one text."""

    tokens: tuple[str, ...]
    """As the tokenizer spells them, [pos]."""
    patterns: np.ndarray
    """float32 [layer, head, query_pos, key_pos]; each row sums to 1."""

    def __repr__(self) -> str:
        layers, heads, pos, _ = self.patterns.shape
        return f"Attention({many(layers, 'layer')}, {many(heads, 'head')}, {many(pos, 'token')})"
