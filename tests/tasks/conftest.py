"""A tiny corpus and tiny models for the tasks: characters of one sentence, specials in front."""

from math import log
from types import SimpleNamespace

import numpy as np
import pytest

from qkv.models import build
from qkv.models.layout import Layout, ModelConfig, Sizes
from qkv.tokenizers.tokens import Tokens

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = "\n .abcdefghijklmnopqrstuvwxyz"


class Letters:
    """A character tokenizer that keeps the contract of the data room; special strings in a text are plain text."""

    kind = "char"
    end_id: int | None = None
    ends: tuple[int, ...] = ()
    start: int | None = None
    framed = False
    around = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))

    def __init__(self, specials: bool) -> None:
        names = SPECIALS if specials else ()
        self.special = {name: i for i, name in enumerate(names)}
        self.special_ids = frozenset(self.special.values())
        self._first = len(names)
        self.d_vocab = self._first + len(LETTERS)

    def encode(self, text: str, special: bool = False) -> np.ndarray:
        unknown = self.special.get("[UNK]", self._first)
        found = [LETTERS.find(c) for c in text]
        return np.array([unknown if i < 0 else i + self._first for i in found], dtype=np.int64)

    def token(self, i: int) -> str:
        return self.decode(np.array([i]))

    def decode(self, ids: np.ndarray) -> str:
        names = {i: name for name, i in self.special.items()}
        return "".join(names.get(int(i)) or LETTERS[int(i) - self._first] for i in ids)


def tokens(ids: np.ndarray, d_vocab: int) -> Tokens:
    assert ids.max() < d_vocab
    return Tokens(ids=ids.astype(np.uint8), offsets=np.array([0, len(ids)]), n_bytes=len(ids))


@pytest.fixture(scope="session")
def corpus_of():
    """corpus_of(specials, n_train, n_val): random text in which "e" and " " are common."""

    def make(specials: bool, n_train: int = 5000, n_val: int = 1003) -> SimpleNamespace:
        tokenizer = Letters(specials)
        weights = np.linspace(5, 1, len(LETTERS))
        rng = np.random.default_rng(0)
        ids = rng.choice(len(LETTERS), size=n_train + n_val, p=weights / weights.sum()) + len(tokenizer.special)
        train, val = (tokens(part, tokenizer.d_vocab) for part in (ids[:n_train], ids[n_train:]))
        return SimpleNamespace(
            tokenizer=tokenizer, train=train, val=val, bits_per_byte=lambda loss: loss * len(val) / val.n_bytes / log(2)
        )

    return make


@pytest.fixture(scope="session")
def model_of():
    """model_of(kind, d_vocab, **layout): a tiny model whose outputs are not zero; n_ctx 16."""

    def make(kind: str, d_vocab: int, *, n_ctx: int = 16, n_kv_heads: int = 2, seed: int = 0, **layout):
        sizes = Sizes(d_vocab=d_vocab, d_model=16, n_layers=2, n_heads=2, n_ctx=n_ctx, n_kv_heads=n_kv_heads)
        return build(ModelConfig(kind=kind, sizes=sizes, layout=Layout(**{"start": "gpt2", **layout})), seed)

    return make
