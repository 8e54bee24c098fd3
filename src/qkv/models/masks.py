"""Which keys a query may see: causality, key padding and documents, joined into one additive bias.

A plain causal or unrestricted view needs no tensor at all, so that the fused operator can take its fastest route.
"""

import math

import torch
from torch import Tensor

from qkv.errors import ConfigError
from qkv.kernels.attention import Visible
from qkv.shapes import Bool, Float, Int

__all__ = ["Visible", "visible"]


def visible(
    n_query: int,
    n_key: int,
    *,
    causal: bool,
    keys: Bool[Tensor, "batch {n_key}"] | None = None,
    documents: Int[Tensor, "batch {n_key}"] | None = None,
    query_documents: Int[Tensor, "batch {n_query}"] | None = None,
    window: int = 0,
    like: Float[Tensor, "..."],
) -> Visible:
    """Join causality, key padding, documents and a window (0: none) into one `Visible`.

    `keys` is True for real tokens; `documents` numbers the document of each position. The last query stands at the last
    key, so n_query < n_key is a continuation; queries of another sequence give their own `query_documents`. A query
    that would see nothing at all (padding before the first real token) sees all that causality and window allow, which
    keeps its meaningless result finite. `like` gives dtype and device of the bias.

    Raises ConfigError for keys that are not bool or not of all positions.
    """
    if keys is not None and (keys.dtype != torch.bool or keys.shape[1:] != (n_key,)):
        given = f"{list(keys.shape)} of {keys.dtype}"
        raise ConfigError(
            f"a mask {given} was given; expected bool [batch, {n_key}], True for real tokens, such as mask.bool()"
        )
    offset = n_key - n_query
    if keys is None and documents is None and not window:
        if not causal or n_query == 1:
            return Visible(False, None)
        if offset == 0:
            return Visible(True, None)
    seen = torch.ones(1, 1, n_key, dtype=torch.bool, device=like.device)
    if causal:
        seen = torch.ones(n_query, n_key, dtype=torch.bool, device=like.device).tril(offset)[None]
    if window:
        near = torch.ones(n_query, n_key, dtype=torch.bool, device=like.device).triu(offset - window + 1)
        seen = seen & near.tril(offset + window - 1)[None]
    order = seen
    if documents is not None:
        readers = documents[:, offset:] if query_documents is None else query_documents
        seen = seen & (readers[:, :, None] == documents[:, None, :])
    if keys is not None:
        seen = seen & keys[:, None, :]
    if keys is not None or query_documents is not None:
        seen = seen | (order & ~seen.any(dim=-1, keepdim=True))
    bias = torch.zeros(seen.shape, dtype=like.dtype, device=like.device).masked_fill_(~seen, -math.inf)
    return Visible(False, bias[:, None], keys, documents)
