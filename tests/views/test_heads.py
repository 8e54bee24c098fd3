"""Attention payloads: patterns survive, summaries equal their formulas, even attention is its own null."""

import base64

import numpy as np
import pytest

from qkv.models import Layout
from qkv.views.sections.heads import attention_text, head_notes, longest_in


def pattern(causal, n=7, heads=3, seed=0):
    scores = np.random.default_rng(seed).normal(size=(heads, n, n))
    if causal:
        scores = np.where(np.tril(np.ones((n, n))) > 0, scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


@pytest.mark.parametrize("causal", [True, False])
def test_patterns_come_back_within_half_a_step(causal):
    patterns = [pattern(causal, seed=layer) for layer in range(2)]
    text = attention_text(list("abcdefg"), [patterns, patterns[::-1]], steps=[4, 8], origin="x", causal=causal)
    stored = (
        np.frombuffer(base64.b64decode(text.patterns.data), "u1").reshape(text.patterns.shape) * text.patterns.scale
    )
    expected = np.stack([np.stack(patterns), np.stack(patterns[::-1])])
    expected = expected[:, :, :, *np.tril_indices(7)] if causal else expected
    np.testing.assert_allclose(stored, expected, atol=1 / 510 + 1e-12)
    assert [(note.layer, note.head) for note in text.heads] == 2 * [(layer, h) for layer in range(2) for h in range(3)]


@pytest.mark.parametrize("causal", [True, False])
def test_sums_over_rows_and_columns_are_taken_before_shares_are_rounded(causal):
    n, even = 100, np.arange(1, 101) if causal else np.full(100, 100)
    flat = (np.tril(np.ones((n, n))) if causal else np.ones((n, n))) / even[:, None]
    patterns = [np.stack([flat, pattern(causal, n, 1, seed)[0]]).astype(np.float32) for seed in range(3)]
    text = attention_text(["a"] * n, [patterns, patterns[::-1]], steps=[4, 8], origin="x", causal=causal)
    received, entropy = (
        np.frombuffer(base64.b64decode(sums.data), "<f4").reshape(2, 3, 2, n) for sums in (text.received, text.entropy)
    )
    np.testing.assert_allclose(entropy[:, :, 0], np.broadcast_to(np.log(even), (2, 3, n)), atol=1e-5)
    p = np.stack([np.stack(patterns), np.stack(patterns[::-1])]).astype(np.float64)
    np.testing.assert_allclose(received, p.sum(3), rtol=1e-6)
    np.testing.assert_allclose(entropy, -(p * np.log(np.where(p > 0, p, 1))).sum(4), atol=1e-5)
    means = [note.entropy_nats for note in text.heads]
    np.testing.assert_allclose(means, entropy.mean(3).ravel(), rtol=1e-6)


def test_sums_of_144_heads_add_little_to_a_page():
    patterns = [np.full((12, 128, 128), 1 / 128, np.float32)] * 12
    text = attention_text(["a"] * 128, [patterns], steps=[0], origin="x", causal=False)
    assert len(text.received.data) + len(text.entropy.data) < 200_000


def test_even_attention_reads_its_own_null():
    n = 6
    even = np.tril(np.ones((n, n))) / np.arange(1, n + 1)[:, None]
    (note,) = head_notes(0, even[None], True)
    for share in note.shares:
        assert share.share == pytest.approx(share.even)
    assert note.entropy_nats == pytest.approx(note.even_entropy_nats)


def test_even_attention_in_a_window_and_beside_a_sink_reads_its_own_null():
    layout = Layout(window=3, window_layers="wf", sinks=True)
    sees = np.tril(np.ones((8, 8)))
    for layer, seen in enumerate((np.triu(sees, -2), sees)):
        (note,) = head_notes(layer, (seen / (seen.sum(1, keepdims=True) + 1))[None], True, layout=layout)
        assert [c.share for c in note.shares if c.name != "the first"] == pytest.approx(
            [c.even for c in note.shares if c.name != "the first"]
        )
        assert note.shares[-1].share == pytest.approx(note.shares[-1].even)
        assert note.entropy_nats == pytest.approx(note.even_entropy_nats)


def test_a_head_that_copies_the_previous_token_is_said_to():
    n = 6
    p = np.zeros((1, n, n))
    p[0, 0, 0] = 1
    p[0, np.arange(1, n), np.arange(n - 1)] = 1
    (note,) = head_notes(0, p, True)
    assert {share.name: share.share for share in note.shares} == {
        "itself": pytest.approx(1 / 6),
        "the previous": 1.0,
        "the first": 0.0,
    }
    assert note.entropy_nats == 0


def test_shares_and_entropy_equal_a_plain_sum():
    p = pattern(False)
    n = p.shape[1]
    for head, note in enumerate(head_notes(0, p, False)):
        shares = {share.name: share.share for share in note.shares}
        assert shares["itself"] == pytest.approx(np.mean([p[head, q, q] for q in range(n)]))
        assert shares["the next"] == pytest.approx(np.mean([p[head, q, q + 1] for q in range(n - 1)]))
        assert note.entropy_nats == pytest.approx(-np.mean([sum(x * np.log(x) for x in p[head, q]) for q in range(n)]))


def test_a_text_of_one_token_has_only_itself():
    text = attention_text(["a"], [[np.ones((2, 1, 1))]], steps=[0], origin="x", causal=True)
    assert [share.name for share in text.heads[0].shares] == ["itself"]


@pytest.mark.parametrize("causal", [True, False])
def test_patterns_of_144_heads_fit_three_megabytes(causal):
    n = longest_in(144, causal=causal)
    cells = n * (n + 1) // 2 if causal else n * n
    assert 144 * cells * 4 / 3 < 3e6 and n == (128 if causal else 122)
