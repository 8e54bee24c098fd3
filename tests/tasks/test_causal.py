"""Batches, loss and continuation of the causal task."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.data.packing import train_window
from qkv.tasks import Causal, PredictOptions, validation_loss

TASK = Causal()


@pytest.fixture(scope="module")
def corpus(corpus_of):
    return corpus_of(specials=False)


@pytest.fixture(scope="module")
def model(model_of, corpus):
    return model_of("CausalLM", corpus.tokenizer.d_vocab)


def test_targets_are_the_tokens_after_the_inputs(corpus, model):
    examples = np.array([3, 9, 4])
    batch = TASK.train_batch(corpus, model.config.sizes, 1, 0, examples)
    windows = train_window(corpus.train, 16, 1, examples)
    assert batch.inputs.dtype == batch.targets.dtype == torch.int64
    assert batch.inputs.is_contiguous() and batch.inputs.shape == (3, 16)
    assert batch.inputs.numpy().tolist() == windows[:, :-1].tolist()
    assert batch.targets.view(3, 16).numpy().tolist() == windows[:, 1:].tolist()


def test_an_example_is_the_same_in_whatever_batch_it_comes(corpus, model):
    sizes = model.config.sizes
    whole = TASK.train_batch(corpus, sizes, 1, 5, np.arange(8, 16))
    part = TASK.train_batch(corpus, sizes, 1, 5, np.array([9, 15]))
    assert part.inputs.equal(whole.inputs[[1, 7]])
    assert part.targets.view(2, -1).equal(whole.targets.view(8, -1)[[1, 7]])


def test_validation_predicts_every_token_after_the_first_once(corpus, model):
    for batch_size in (1, 7, 1000):
        batches = list(TASK.val_batches(corpus, model.config.sizes, batch_size))
        assert torch.cat([batch.targets for batch in batches]).tolist() == corpus.val.ids[1:].tolist()


def test_validation_loss_does_not_depend_on_batch_size_and_equals_a_plain_sum(corpus, model):
    losses = [validation_loss(model, TASK, corpus, batch_size) for batch_size in (1, 5, 64)]
    ids = torch.from_numpy(corpus.val.ids.astype(np.int64))
    with torch.no_grad():
        plain = sum(
            F.cross_entropy(
                model(ids[None, a : a + 16][:, : len(ids) - 1 - a])[0], ids[a + 1 : a + 17], reduction="sum"
            )
            for a in range(0, len(ids) - 1, 16)
        ) / (len(ids) - 1)
    assert losses == pytest.approx([float(plain)] * 3, rel=1e-6)


@pytest.mark.parametrize("tied", [True, False])
def test_loss_and_gradients_equal_cross_entropy_of_the_logits(corpus, model_of, tied):
    model = model_of("CausalLM", corpus.tokenizer.d_vocab, tied=tied).double()
    batch = TASK.train_batch(corpus, model.config.sizes, 0, 0, np.arange(4))
    nats, n = TASK.loss(model, batch)
    ours = torch.autograd.grad(nats, list(model.parameters()))
    plain = F.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets, reduction="sum")
    theirs = torch.autograd.grad(plain, list(model.parameters()))
    assert n == 64
    torch.testing.assert_close(nats, plain, rtol=1e-12, atol=0)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("n_words", "there"), [(1, False), (4, False), (6, True)])
def test_perplexity_by_words_is_left_out_where_a_word_costs_more_than_a_float_holds(corpus, model, n_words, there):
    data = SimpleNamespace(**vars(corpus), n_words=lambda: n_words)
    found = TASK.evaluate(model, data)
    nats = found.figures["bits_per_byte"].value * np.log(2) * len(corpus.val) / n_words
    assert there == (nats < 700) == ("word_perplexity" in found.figures)
    if there:
        value, (low, high) = found.figures["word_perplexity"][:2]
        assert np.log(value) == pytest.approx(nats) and 0 < low < value < high < np.inf


def test_the_share_of_unknown_tokens_stands_beside_bits_per_byte(corpus, model):
    assert "unknown_share" not in TASK.evaluate(model, corpus).figures
    val = dataclasses.replace(corpus.val, n_unknown=3)
    found = TASK.evaluate(model, SimpleNamespace(**vars(corpus) | {"val": val}))
    assert found.as_json()["unknown_share"] == 3 / 1003 and found.bits_per_byte is not None


def test_dropout_of_the_caller_reaches_the_model(corpus, model):
    sites = []

    def drop(site, x):
        sites.append(site)
        return x

    TASK.loss(model, TASK.train_batch(corpus, model.config.sizes, 0, 0, np.arange(2)), drop)
    assert "embed" in sites and any("attn" in site for site in sites)


def test_scores_sum_to_the_loss_and_name_their_rows(corpus, model):
    batch = list(TASK.val_batches(corpus, model.config.sizes, 1000))[-1]
    scores = TASK.score(model, batch)
    assert float(scores.nats.sum()) == pytest.approx(float(TASK.loss(model, batch)[0].detach()), rel=1e-6)
    assert np.bincount(scores.rows).tolist() == [16] * 62 + [1002 - 62 * 16]


def test_the_same_seed_gives_the_same_continuation_and_another_another(corpus, model):
    say = lambda **o: TASK.predict(model, corpus.tokenizer, ["abc", "the"], PredictOptions(tokens=30, **o))  # noqa: E731
    assert say(seed=4) == say(seed=4) != say(seed=5)
    assert say(temperature=0, seed=4) == say(temperature=0, seed=5) == say(top_k=1) == say(top_p=1e-9)
    assert all(len(text) == 30 for text in say())


def test_an_empty_text_is_continued_as_a_new_line(corpus, model):
    options = PredictOptions(tokens=12)
    (empty,) = TASK.predict(model, corpus.tokenizer, [""], options)
    assert [empty] == TASK.predict(model, corpus.tokenizer, ["\n"], options)
    assert len(empty) == 12


def test_no_text_gives_no_output(corpus, model):
    assert TASK.predict(model, corpus.tokenizer, [], PredictOptions()) == []


def test_special_tokens_are_never_sampled(corpus_of, model_of):
    tokenizer = corpus_of(specials=True).tokenizer
    model = model_of("CausalLM", tokenizer.d_vocab)
    with torch.no_grad():
        model.embedding.W_E[:5] *= 100
    texts = TASK.predict(model, tokenizer, ["abc"] * 4, PredictOptions(tokens=50, temperature=2.0))
    assert not any("[" in text for text in texts)


def test_special_tokens_beyond_ours_are_never_sampled(corpus_of, model_of):
    tokenizer = corpus_of(specials=True).tokenizer
    tokenizer.special_ids |= set(tokenizer.encode("aeiou ").tolist())
    model = model_of("CausalLM", tokenizer.d_vocab)
    texts = TASK.predict(model, tokenizer, ["abc"] * 4, PredictOptions(tokens=50, temperature=2.0))
    assert all(len(text) == 50 and not set("aeiou ") & set(text) for text in texts)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=9), st.integers(0, 3), st.integers(0, 99))
def test_batches_are_pure_functions_of_their_names(corpus_of, model_of, examples, seed, step):
    corpus = corpus_of(specials=False)
    sizes = model_of("CausalLM", corpus.tokenizer.d_vocab).config.sizes
    ask = lambda: TASK.train_batch(corpus, sizes, seed, step, np.array(examples))  # noqa: E731
    first, second = ask(), ask()
    assert first.inputs.equal(second.inputs) and first.targets.equal(second.targets)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("=== 1.2 *** stmt ::= x\nThe king sees a dog at home. Then he", "The king sees a dog at"),
        ("all lower case words stay as they are here", "all lower case words stay as"),
        ("one two", "one two"),
        ("", None),
    ],
)
def test_a_sample_goes_on_from_the_first_words_of_prose(text, expected):
    class Data:
        class tokenizer:
            decode = staticmethod(lambda ids: "".join(map(chr, ids)))

        class val:
            ids = np.array([ord(c) for c in text], dtype=np.int64)

    assert TASK.sample_inputs(Data) == ([expected] if expected else [])
