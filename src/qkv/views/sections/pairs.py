"""A source and what was written of it, in a model with an encoder and a decoder: every head of its three attentions.

Cross-attention first, which says where in the source the decoder looks while it writes each token; then the source by
itself, and what was written by itself. Bahdanau et al. 2014 (arXiv 1409.0473) call the first an alignment; that a head
looks at a word is not yet a reason for what it writes (Jain and Wallace 2019, arXiv 1902.10186).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qkv.data.pairs import ARROW, encode_lines, end_of, line_of, start_of
from qkv.errors import UserError
from qkv.tasks import PredictOptions
from qkv.tasks.translate import Translate
from qkv.views.payloads import AttentionText
from qkv.views.sections.heads import attention_text
from qkv.views.viewer import LONGEST_TEXT, Viewer, Words
from qkv.words import many

__all__ = ["Pair", "n_maps", "pair_attention", "read_pair", "read_source"]


@dataclass(frozen=True, eq=False)
class Pair:
    """A source and its target as a model reads them."""

    source: Tensor
    """int64 [1, source_pos], the end mark with it."""
    inputs: Tensor
    """int64 [1, target_pos]: the start mark, then all that was written."""
    source_tokens: tuple[str, ...]
    input_tokens: tuple[str, ...]
    written: tuple[str, ...]
    """What each target position writes, the end mark last."""
    n_all: int
    """Tokens of the whole source."""


def n_maps(n_heads: int) -> int:
    """Maps of a pair in each layer: every head of three attentions."""
    return 3 * n_heads


def read_pair(viewer: Viewer, text: str, longest: int) -> Pair:
    """`SOURCE => TARGET` as its model was trained on it, either side cut to `longest` tokens; for a source alone the
    newest weights write a target, as `qkv predict` does.

    Raises UserError as `read_source`.
    """
    tokenizer, source = viewer.tokenizer, read_source(viewer, text, longest)
    line, _, target = (line_of(side) for side in text.partition(ARROW))
    longest = min(longest, viewer.config.model.sizes.n_ctx)
    written = _cut(encode_lines(tokenizer, [target or _translated(viewer, line)])[0], longest, end_of(tokenizer))
    inputs = np.insert(written[:-1], 0, start_of(tokenizer))
    return Pair(
        source=source.ids,
        inputs=torch.from_numpy(inputs)[None],
        source_tokens=source.tokens,
        input_tokens=tuple(tokenizer.token(int(i)) for i in inputs),
        written=tuple(tokenizer.token(int(i)) for i in written),
        n_all=source.n_all,
    )


def read_source(viewer: Viewer, text: str, longest: int) -> Words:
    """What stands before an arrow, the end mark with it, cut to `longest` tokens.

    Raises UserError for more than `LONGEST_TEXT` characters, and for a source without a token.
    """
    if len(text) > LONGEST_TEXT:
        raise UserError(f"the text has {len(text):,} characters; expected at most {LONGEST_TEXT:,}: shorten it")
    tokenizer, line = viewer.tokenizer, line_of(text.partition(ARROW)[0])
    whole = encode_lines(tokenizer.of_source, [line])[0]
    if not line or len(whole) < 2:
        raise UserError(f"the text has {many(len(whole) - 1, 'token')}; expected at least 1: type a longer one")
    ids = _cut(whole, min(longest, viewer.config.model.sizes.n_ctx), end_of(tokenizer))
    return Words(torch.from_numpy(ids)[None], tuple(tokenizer.token(int(i)) for i in ids), len(whole))


def _cut(ids: np.ndarray, longest: int, end: int) -> np.ndarray:
    return ids if len(ids) <= longest else np.append(ids[: longest - 1], end)


def _translated(viewer: Viewer, line: str) -> str:
    with viewer.turn:
        return Translate().predict(viewer.model(), viewer.tokenizer, [line], PredictOptions(cut=True))[0]


def pair_attention(
    viewer: Viewer, pair: Pair, origin: str, *, steps: Sequence[int] = (), changes: Sequence[str] = ()
) -> tuple[AttentionText, ...]:
    """Every number of every head on a pair, at each of `steps` (without any, the last): cross-attention, the encoder's
    and the decoder's own."""
    at = list(steps) or [viewer.last_step()]
    records = []
    for step in at:
        with torch.inference_mode():
            records.append(viewer.model(step, changes).forward_recorded(pair.source, pair.inputs)[1])
    n_layers = viewer.config.model.sizes.n_layers

    def patterns(site: str) -> list[list[np.ndarray]]:
        names = [f"{site.format(layer)}.pattern" for layer in range(n_layers)]
        return [[record[name][0].float().numpy() for name in names] for record in records]

    told = {"steps": at, "origin": origin}
    return (
        attention_text(
            pair.written, patterns("dec.L{}.cross"), keys=pair.source_tokens, site="cross", causal=False, **told
        ),
        attention_text(pair.source_tokens, patterns("enc.L{}"), site="enc", causal=False, **told),
        attention_text(pair.input_tokens, patterns("dec.L{}"), site="dec", causal=True, **told),
    )
