"""Tasks under the tokenizers that people use: how fills and continuations join the text that was typed."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from qkv.data.config import DataConfig
from qkv.data.corpus import load_corpus
from qkv.tasks import Causal, Masked, PredictOptions, evaluate, validation_loss
from qkv.tokenizers.tokenizer import fit_tokenizer

TEXT = "the cat sat on the mat. the king sings and walks; a queen walked home to the sea.\n" * 60
KINDS = ("char", "byte", "word", "bpe", "wordpiece", "unigram")


class Favourites(nn.Module):
    """A causal or masked model whose answer is always the first of its favourites, less likely the next ones."""

    def __init__(self, d_vocab: int, favourites: list[int]) -> None:
        super().__init__()
        logits = torch.zeros(d_vocab)
        logits[favourites] = torch.arange(len(favourites), 0, -1) + 5.0
        self.logits = nn.Parameter(logits)
        self.config = SimpleNamespace(sizes=SimpleNamespace(n_ctx=64))

    def new_cache(self, batch):
        return None

    def hidden(self, ids, mask=None, cache=None):
        return torch.zeros(*ids.shape, 1)

    def unembed(self, h):
        return self.logits.expand(*h.shape[:-1], -1)


def tokenizer_of(kind: str, specials: bool = True):
    return fit_tokenizer(kind, [TEXT], vocab={"char": 0, "byte": 0}.get(kind, 300), specials=specials)


def say(kind: str, word: str, text: str) -> str:
    """The text with its marks filled by a model that always says `word` (as the tokenizer names it)."""
    tokenizer = tokenizer_of(kind)
    (ids,) = [i for i in range(tokenizer.d_vocab) if tokenizer.token(i) == word]
    model = Favourites(tokenizer.d_vocab, [ids])
    return Masked().predict(model, tokenizer, [text], PredictOptions())[0]


@pytest.mark.parametrize(
    ("kind", "word", "text", "expected"),
    [
        ("word", "cat", "the [MASK] sat.", "the cat sat."),
        ("word", "cat", "([MASK]) sat", "(cat) sat"),
        ("wordpiece", "cat", "the [MASK] sat.", "the cat sat."),
        ("wordpiece", "##s", "the king [MASK] home", "the kings home"),
        ("wordpiece", "cat", "([MASK]), [MASK]", "(cat), cat"),
        ("wordpiece", "##s", "[MASK] home", "s home"),
        ("bpe", " cat", "the [MASK] sat.", "the cat sat."),
        ("bpe", "s", "the king [MASK] home", "the kings home"),
        ("bpe", " cat", "[MASK] sat", "cat sat"),
        ("unigram", " cat", "the [MASK] sat.", "the cat sat."),
        ("char", "q", "the [MASK] sat[MASK]", "the q satq"),
        ("byte", "x", "thé [MASK] ☃[MASK]", "thé x ☃x"),
        ("byte", "<0xE2>", "a[MASK]b", "a\ufffdb"),
    ],
)
def test_a_fill_reads_as_the_tokenizer_spells_words(kind, word, text, expected):
    assert say(kind, word, text) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_typed_stays_even_where_the_tokenizer_does_not_know_it(kind):
    tokenizer = tokenizer_of(kind)
    first = next(i for i in range(tokenizer.d_vocab) if tokenizer.token(i).strip() in ("a", "t"))
    model = Favourites(tokenizer.d_vocab, [first])
    (out,) = Masked().predict(model, tokenizer, ["ΩΩ  [PAD]  x\t[MASK] [UNK]"], PredictOptions())
    assert out.startswith("ΩΩ  [PAD]  x") and out.endswith(" [UNK]") and "[MASK]" not in out


@pytest.mark.parametrize("kind", KINDS)
def test_a_continuation_reads_on_from_the_text(kind):
    tokenizer = tokenizer_of(kind, specials=False)
    ids = tokenizer.encode("the cat sat")
    model = Favourites(tokenizer.d_vocab, [int(ids[-1])])
    options = PredictOptions(tokens=3, temperature=0)
    (after,) = Causal().predict(model, tokenizer, ["the cat"], options)
    assert "the cat" + after == tokenizer.decode([*tokenizer.encode("the cat"), *[ids[-1]] * 3])
    (spaced,) = Causal().predict(model, tokenizer, ["the cat "], options)
    assert ("  " in "the cat " + spaced) == (kind in ("bpe", "unigram") and after.startswith(" "))


def test_a_continuation_stops_where_the_model_ends_the_document_but_never_before_one_token():
    tokenizer = fit_tokenizer("bpe", [TEXT], vocab=300, end=True)
    (cat,) = tokenizer.encode(" cat")
    model = Favourites(tokenizer.d_vocab, [tokenizer.end_id, int(cat)])
    for temperature in (0.0, 1e-3):
        options = PredictOptions(tokens=9, temperature=temperature)
        assert Causal().predict(model, tokenizer, ["the", "", "the king sings"], options) == [" cat", "cat", " cat"]


@pytest.mark.parametrize("kind", ["char", "wordpiece", "bpe"])
@pytest.mark.parametrize("task", [Causal(), Masked()], ids=lambda task: task.name)
def test_tasks_work_on_real_corpora_of_documents(task, kind, tmp_path, model_of):
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(12):
        (folder / f"{i}.txt").write_text(f"{i} " + TEXT[: 400 + 7 * i] + f" number {i * 37}", encoding="utf-8")
    corpus = load_corpus(
        DataConfig(source=str(folder), tokenizer=kind, vocab=0 if kind == "char" else 300),
        cache=None,
        task_specials=task.needs_specials,
    )
    model = model_of(task.model_kind, corpus.tokenizer.d_vocab)
    batch = task.train_batch(corpus, model.config.sizes, 0, 0, np.arange(4))
    nats, n = task.loss(model, batch)
    assert torch.isfinite(nats) and n == batch.n_targets > 0
    result = evaluate(model, task, corpus)
    assert result.loss == pytest.approx(validation_loss(model, task, corpus, 3), rel=1e-6)
    if task.name == "masked":
        ends = [corpus.tokenizer.end_id, corpus.tokenizer.special["[MASK]"]]
        assert not np.isin(batch.targets.numpy(), ends).any()
        assert result.bits_per_byte is None
    else:
        assert result.bits_per_byte == pytest.approx(corpus.bits_per_byte(result.loss))
        assert result.n_targets == len(corpus.val) - 1
