"""Filling typed [MASK]s, with a rule instead of a trained model as the oracle."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from qkv.errors import UserError
from qkv.tasks import Masked, PredictOptions
from qkv.tasks.filling import _probabilities, _read

TASK = Masked()


class Rule(nn.Module):
    """Answers with the letter after the left neighbour's, or "a" where that is no letter; surer further left."""

    def __init__(self, tokenizer, n_ctx: int = 16) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.config = SimpleNamespace(sizes=SimpleNamespace(n_ctx=n_ctx))
        self.d_vocab, self.a = tokenizer.d_vocab, int(tokenizer.encode("a")[0])

    def hidden(self, ids, mask=None):
        assert ids.shape[1] <= self.config.sizes.n_ctx
        left = torch.cat([torch.full_like(ids[:, :1], self.a - 1), ids[:, :-1]], dim=1)
        answer = torch.where(left >= self.a - 1, (left + 1).clamp(max=self.d_vocab - 1), self.a)
        sure = 1 - torch.arange(ids.shape[1]) / 100
        return nn.functional.one_hot(answer, self.d_vocab) * sure[:, None] * 5

    def unembed(self, h):
        return h.float()


class Words:
    """Words with the space before them inside (as byte-pair encodings have them), built from what it is given."""

    kind = "bpe"

    def __init__(self, vocabulary: list[str]) -> None:
        self.special = {"[PAD]": 0, "[MASK]": 1}
        self.special_ids = frozenset(self.special.values())
        self.around = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
        self.vocabulary = ["[PAD]", "[MASK]", *vocabulary]
        self.d_vocab = len(self.vocabulary)

    def encode(self, text: str, special: bool = False) -> np.ndarray:
        ids = []
        while text:
            word = max((w for w in self.vocabulary[2:] if text.startswith(w)), key=len)
            ids.append(self.vocabulary.index(word))
            text = text[len(word) :]
        return np.array(ids, dtype=np.int64)

    def decode(self, ids: np.ndarray) -> str:
        return "".join(self.vocabulary[int(i)] for i in ids)

    def token(self, i: int) -> str:
        return self.vocabulary[i]


class Fixed(nn.Module):
    """Gives the same logits everywhere."""

    def __init__(self, logits: list[float], n_ctx: int = 16) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))
        self.config = SimpleNamespace(sizes=SimpleNamespace(n_ctx=n_ctx))

    def hidden(self, ids, mask=None):
        return torch.zeros(*ids.shape, 1)

    def unembed(self, h):
        return self.logits.expand(*h.shape[:-1], -1)


@pytest.fixture
def tokenizer(corpus_of):
    return corpus_of(specials=True).tokenizer


def fill(model, tokenizer, *texts, **options):
    return TASK.predict(model, tokenizer, texts, PredictOptions(**options))


def probabilities(model, tokenizer, texts):
    return _probabilities(model, tokenizer, [_read(tokenizer, text) for text in texts])


def test_every_mask_is_filled_in_its_place_and_the_rest_stays_as_typed(tokenizer):
    model = Rule(tokenizer)
    assert fill(model, tokenizer, "ab[MASK]d x", "[MASK]", "mn[MASK]", "q [MASK]b") == ["abcd x", "a", "mno", "q ab"]


def test_the_surest_mark_is_filled_first_and_the_others_see_it(tokenizer):
    assert fill(Rule(tokenizer), tokenizer, "m[MASK][MASK]") == ["mno"]


def test_a_text_longer_than_the_window_is_seen_through_a_window_around_each_mark(tokenizer):
    model = Rule(tokenizer, n_ctx=8)
    text = "xxxxxxxxxxxxxab[MASK]xxxxxxxxxxxxxxxxxxxxxpq[MASK]"
    assert fill(model, tokenizer, text) == ["xxxxxxxxxxxxxabcxxxxxxxxxxxxxxxxxxxxxpqr"]


def test_only_the_mask_string_is_special(tokenizer):
    (out,) = fill(Rule(tokenizer), tokenizer, "[PAD]b[MASK]")
    assert out == "[PAD]bc"


def test_a_text_without_a_mask_is_the_users_mistake(tokenizer):
    with pytest.raises(UserError, match=r"there is no \[MASK\] in 'abc'"):
        fill(Rule(tokenizer), tokenizer, "abc")
    with pytest.raises(UserError, match=r"in 'abc' \(text 2 of 2\); type"):
        fill(Rule(tokenizer), tokenizer, "a[MASK]", "abc")


def test_padding_does_not_change_an_answer(corpus_of, model_of, tokenizer):
    model = model_of("MaskedLM", tokenizer.d_vocab)
    texts = ["ab[MASK]d", "the [MASK] sat.", "[MASK]", "x[MASK]y[MASK]z"]
    together = probabilities(model, tokenizer, texts)
    for text, expected in zip(texts, together, strict=True):
        (alone,) = probabilities(model, tokenizer, [text])
        assert np.array_equal(alone.argmax(1), expected.argmax(1))
        np.testing.assert_allclose(alone, expected, rtol=1e-4)


def test_a_mark_is_filled_by_the_softmax_over_ordinary_tokens(tokenizer):
    logits = torch.randn(tokenizer.d_vocab, generator=torch.Generator().manual_seed(0))
    logits[: len(tokenizer.special)] += 10
    (p,) = probabilities(Fixed(logits.tolist()), tokenizer, ["a[MASK]"])
    assert p[0] == pytest.approx([0] * 5 + logits[5:].double().softmax(0).tolist())


def test_sampled_fills_follow_seed_and_temperature(tokenizer):
    model = Fixed([0.0] * tokenizer.d_vocab)
    text = "[MASK]" * 10
    first, again, other = (fill(model, tokenizer, text, temperature=1.0, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    assert fill(model, tokenizer, text) == fill(model, tokenizer, text, seed=9)


@pytest.mark.parametrize(
    ("text", "word", "expected"),
    [
        ("the [MASK] sat", " cat", "the cat sat"),
        ("the [MASK] sat", "s", "thes sat"),
        ("[MASK] sat", " cat", "cat sat"),
        ("the[MASK] sat", " cat", "the cat sat"),
    ],
)
def test_a_space_before_the_mark_belongs_to_the_word_that_fills_it(text, word, expected):
    tokenizer = Words(["a", " a", " ", "the", " cat", " sat", "s"])
    logits = [0.0] * tokenizer.d_vocab
    logits[tokenizer.vocabulary.index(word)] = 5.0
    assert fill(Fixed(logits), tokenizer, text) == [expected]
