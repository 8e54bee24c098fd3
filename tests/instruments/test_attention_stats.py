"""What heads attend to, against the explicit pattern in float64: every mask, shared heads, scores up to 500."""

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from qkv.instruments import attention_rows, attention_stats, induction_score
from qkv.instruments.attention_rows import _blockwise, _kernel, _kernel_gives_lse
from qkv.instruments.measures.attention import DOMINANT
from qkv.instruments.registry import STATISTICS
from qkv.models import MultiHeadAttention


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def explicit(q, k, scale, hidden, skip):
    """Every statistic from the whole float64 pattern; `hidden` [batch, query_pos, key_pos]; `skip` leaves rows out."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores = (scale * (q.double() @ k.double().mT)).masked_fill(hidden[:, None], -math.inf).numpy()
    pattern = np.exp(scores - scores.max(-1, keepdims=True))
    pattern /= pattern.sum(-1, keepdims=True)
    logs = np.log(np.where(pattern > 0, pattern, 1))
    n, m = scores.shape[-2:]
    rows = ~np.broadcast_to(skip.numpy()[:, None], scores.shape[:-1])
    away = np.abs(np.arange(n)[:, None] - np.arange(m))
    previous = np.full(scores.shape[:-1], np.nan)
    seen = ~hidden.numpy()[:, np.arange(1, n), np.arange(n - 1)] if n == m else np.zeros((len(q), 0), bool)
    if n == m:
        beside = pattern[:, :, np.arange(1, n), np.arange(n - 1)]
        previous[:, :, 1:] = np.where(seen[:, None], beside, np.nan)
    first = (~hidden.numpy()).argmax(-1)
    found = {
        "entropy": -(pattern * logs).sum(-1),
        "largest_score": scores.max(-1),
        "own_mass": np.diagonal(pattern, axis1=-2, axis2=-1) if n == m else None,
        "previous_mass": previous,
        "first_mass": np.take_along_axis(pattern, np.broadcast_to(first[:, None, :, None], (*rows.shape, 1)), -1)[
            ..., 0
        ],
        "distance": (pattern * away).sum(-1),
        "dominant_rows": (pattern.max(-1) > DOMINANT).astype(float),
    }
    out = {}
    for name, values in found.items():
        if values is None or (n != m and name in ("own_mass", "previous_mass", "distance")):
            out[name] = np.full(q.shape[1], np.nan)
            continue
        kept = np.where(rows, values, np.nan).transpose(1, 0, 2).reshape(q.shape[1], -1)
        out[name] = np.nanmax(kept, 1) if name == "largest_score" else np.nanmean(kept, 1)
    return out


def agree(got, expected, **tolerance):
    assert set(got) == set(STATISTICS)
    for name in STATISTICS:
        np.testing.assert_allclose(
            got[name], expected[name], err_msg=name, **({"rtol": 1e-6, "atol": 1e-6} | tolerance)
        )


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n_kv_heads", [4, 2, 1])
def test_statistics_equal_those_of_the_whole_pattern(causal, n_kv_heads):
    q, k, scale = draw(3, 4, 23, 6), draw(3, n_kv_heads, 23, 6, seed=1) + 2, 0.9
    hidden = torch.ones(23, 23, dtype=torch.bool).triu(1).expand(3, 23, 23) if causal else torch.zeros(3, 23, 23).bool()
    skip = torch.zeros(3, 23, dtype=torch.bool)
    skip[:, 0] = causal
    agree(attention_stats(q, k, scale=scale, causal=causal), explicit(q, k, scale, hidden, skip))


@pytest.mark.parametrize("causal", [True, False])
def test_documents_and_padding_are_kept_apart(causal):
    q, k, scale, n = draw(2, 4, 17, 6), draw(2, 2, 17, 6, seed=1), 1.3, 17
    documents = torch.tensor([[0] * 5 + [1] * 7 + [2] * 5, [7] * 16 + [9]])
    keys = torch.arange(n) < torch.tensor([[15], [17]])
    hidden = (documents[:, :, None] != documents[:, None]) | ~keys[:, None]
    skip = ~keys
    if causal:
        hidden = hidden | torch.ones(n, n, dtype=torch.bool).triu(1)
        starts = torch.ones_like(skip)
        starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
        skip = skip | starts
    got = attention_stats(q, k, scale=scale, causal=causal, documents=documents, keys=keys)
    agree(got, explicit(q, k, scale, hidden, skip))


def test_cross_attention_has_no_own_position():
    q, k = draw(2, 4, 5, 6), draw(2, 4, 9, 6, seed=1)
    keys = torch.arange(9) < torch.tensor([[9], [4]])
    hidden = (~keys)[:, None].expand(2, 5, 9)
    got = attention_stats(q, k, scale=0.5, keys=keys, itself=False)
    agree(got, explicit(q, k, 0.5, hidden, torch.zeros(2, 5, dtype=torch.bool)))
    assert np.isnan(got["own_mass"]).all() and np.isfinite(got["entropy"]).all()


def test_rows_that_see_nothing_count_for_nothing():
    q, k = draw(2, 2, 5, 4), draw(2, 2, 5, 4, seed=1)
    keys = torch.tensor([[True] * 5, [False] * 5])
    got = attention_stats(q, k, scale=1.0, causal=True, keys=keys)
    alone = attention_stats(q[:1], k[:1], scale=1.0, causal=True)
    agree(got, alone, rtol=1e-12)
    nothing = attention_stats(q, k, scale=1.0, keys=torch.zeros(2, 5, dtype=torch.bool))
    assert all(np.isnan(values).all() for values in nothing.values())


@pytest.mark.parametrize("largest", [1, 50, 200, 500])
@pytest.mark.parametrize("offset", [0.0, 5.0])
@pytest.mark.parametrize("causal", [True, False])
def test_entropy_is_exact_to_1e_4_nats_for_scores_up_to_500(largest, offset, causal):
    q, k, n = draw(1, 4, 96, 32), draw(1, 4, 96, 32, seed=1) + offset, 96
    q = q * (largest / (q @ k.mT).abs().max())
    k[:, :, 7] = (
        q[:, :, 40] * 500 / q[:, :, 40].square().sum(-1, keepdim=True).clamp_min(1) if largest == 500 else k[:, :, 7]
    )
    scores = (q.double() @ k.double().mT).numpy()
    hidden = np.triu(np.ones((n, n), bool), 1) if causal else np.zeros((n, n), bool)
    scores = np.where(hidden, -np.inf, scores)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    rows = -(p * np.log(np.where(p > 0, p, 1))).sum(-1)
    if largest == 500:
        assert (rows < 1e-6).any(), "no row is near zero, so this test shows too little"
    for i in range(1, n, 5):  # one row at a time, so that no error hides in a mean
        part = attention_stats(q[:, :, i : i + 1], k[:, :, : i + 1] if causal else k, scale=1.0, itself=False)
        np.testing.assert_allclose(part["entropy"], rows[0, :, i], atol=1e-4, rtol=0)
    whole = attention_stats(q, k, scale=1.0, causal=causal)
    np.testing.assert_allclose(whole["entropy"], rows[0, :, 1 if causal else 0 :].mean(-1), atol=1e-4, rtol=0)


def test_the_fused_kernel_gives_the_log_sum_exp_that_the_exact_way_gives():
    assert _kernel_gives_lse(), "this torch lost the operator; the exact fallback serves, more slowly"
    q, k = draw(2, 3, 50, 9).double(), draw(2, 3, 50, 9, seed=1).double()
    for causal in (True, False):
        for a, b in zip(*(way(q, k, scale=2.0, causal=causal) for way in (_kernel, _blockwise)), strict=True):
            assert torch.allclose(a, b, atol=1e-6)


def test_the_fallback_gives_the_same_statistics(monkeypatch):
    q, k = draw(1, 4, 40, 8), draw(1, 2, 40, 8, seed=1)
    fused = attention_stats(q, k, scale=1.0, causal=True)
    module = sys.modules["qkv.instruments.attention_stats"]
    monkeypatch.setattr(attention_rows, "_kernel_gives_lse", lambda: False)
    monkeypatch.setattr(attention_rows, "BLOCK_BYTES", 4000)
    monkeypatch.setattr(module, "HEADS_BYTES", 4000)
    agree(attention_stats(q, k, scale=1.0, causal=True), fused)


def test_a_hand_made_induction_head_scores_one_and_an_even_one_its_null():
    period, d = 8, 64
    once = draw(period, d, seed=3)
    once = once / once.norm(dim=-1, keepdim=True)
    text = torch.cat([once, once])[None, None]
    before = torch.cat([torch.zeros(1, 1, 1, d), text[:, :, :-1]], dim=2)  # keys hold the token before
    assert induction_score(text, before, scale=200.0, period=period)[0] == pytest.approx(1, abs=1e-6)
    even = induction_score(torch.zeros(1, 1, 256, 4), draw(1, 1, 256, 4), scale=1.0, period=128)
    assert even[0] == pytest.approx(math.log(2) / 128, rel=0.02)


def test_statistics_of_a_layer_are_those_of_its_recorded_pattern():
    layer = MultiHeadAttention(24, 4, n_kv_heads=2, causal=True, qk_norm=True, rope_base=100.0, seed=1)
    x = draw(2, 30, 24) * 3
    _, record = layer.forward_recorded(x)
    q, (k, _) = layer.queries(x), layer.keys_values(x)
    got = attention_stats(q.detach(), k.detach(), scale=layer.scale, causal=True)
    pattern = record["pattern"].detach().double().numpy()[:, :, 1:]
    expected = -(pattern * np.log(np.where(pattern > 0, pattern, 1))).sum(-1).mean((0, 2))
    np.testing.assert_allclose(got["entropy"], expected, atol=1e-5)
    np.testing.assert_allclose(got["first_mass"], pattern[..., 0].mean((0, 2)), atol=1e-6)


MEMORY = """
import json, resource, sys, torch
torch.set_num_threads(int(sys.argv[1]))
from qkv.instruments import attention_stats
draw = torch.Generator().manual_seed(0)
q, k = (torch.randn(1, 8, 16384, 64, generator=draw) for _ in "qk")
documents = (torch.arange(16384) // 3000)[None]
attention_stats(q[:, :, :64], k[:, :, :64], scale=0.125, causal=True)  # libraries loaded, buffers made
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
plain = attention_stats(q, k, scale=0.125, causal=True)
apart = attention_stats(q, k, scale=0.125, causal=True, documents=documents)
rows = {"extra_mb": peak() - before, "entropy": plain["entropy"].tolist(), "apart": apart["entropy"].tolist()}
i = 9000
scores = 0.125 * (q[0, 0, i].double() @ k[0, 0, : i + 1].double().T)
one = attention_stats(q[:, :1, i : i + 1], k[:, :1, : i + 1], scale=0.125, itself=False)["entropy"][0]
rows["row"] = [one, float(-(scores.softmax(0) * scores.log_softmax(0)).sum())]
print(json.dumps(rows))
"""


@pytest.mark.slow
def test_a_context_of_16384_with_8_heads_needs_less_than_200_mb():
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, "1"], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    found = json.loads(done.stdout)
    print(f"extra memory {found['extra_mb']:.0f} MB")
    assert found["extra_mb"] < 200
    assert len(found["entropy"]) == len(found["apart"]) == 8
    assert all(5 < a < b < math.log(16384) for a, b in zip(found["apart"], found["entropy"], strict=True))
    assert found["row"][0] == pytest.approx(found["row"][1], abs=1e-4)
