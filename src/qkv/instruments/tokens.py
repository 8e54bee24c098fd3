"""How often each token was met: counts over the training part of a corpus.

A token with count 0 was never an input. A row of an untied W_E for such a token gets no gradient at all, so without
weight decay it must not have moved; a tied W_E is the output matrix too, and every prediction pulls at all its rows.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from qkv.data.pairs import Pairs
from qkv.tokenizers.tokens import Tokens

MOST_COUNTED = 200_000_000
"""Of a longer corpus only that many tokens are counted (a second or two); who reports a count must say so."""

_BLOCK = 4_000_000


def count_tokens(ids: np.ndarray, d_vocab: int) -> np.ndarray:
    """How often each id occurs among the first `MOST_COUNTED` of `ids` (any array or memory map): int64 [d_vocab]."""
    counts = np.zeros(d_vocab, dtype=np.int64)
    for start in range(0, min(len(ids), MOST_COUNTED), _BLOCK):
        counts += np.bincount(ids[start : min(start + _BLOCK, MOST_COUNTED)], minlength=d_vocab)
    return counts


def counted_in(fact: Mapping[str, int] | None) -> str:
    """Words for what was counted, by the fact `tokens_counted` of a run: the training text, or its first tokens."""
    if fact and fact["counted"] < fact["of"]:
        return f"the first {fact['counted']:,} tokens of the training text"
    return "the training text"


def ids_read(part: Tokens | Pairs, names: Sequence[str]) -> np.ndarray:
    """The training ids that a table under these names reads, integers [n]: of pairs, its own side's (or both)."""
    sides = {"enc": "source", "dec": "target"}
    scopes = [name.partition(".")[0] for name in names if name.rpartition(".")[2] == "W_E"]
    found = [getattr(part, sides[scope]).ids for scope in scopes if scope in sides]
    return np.concatenate(found) if found else part.ids


def specials(tokenizer: object) -> dict[str, int]:
    """Names of special tokens ([MASK], [PAD], ...) -> id; empty where there are none."""
    return dict(getattr(tokenizer, "special", None) or {})
