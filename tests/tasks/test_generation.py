"""Generation with a cache against the plain way: read everything anew for every token."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.kernels import cache as caches
from qkv.models import ModelConfig, Sizes, build
from qkv.presets import PRESETS
from qkv.randomness import generator
from qkv.tasks import generation
from qkv.tasks.generation import Sampling, choose, context_start, generate

D_VOCAB = 29


def plain(model, prompt, row, *, tokens, how, seed=0):
    """Token by token, one prompt, no cache."""
    ids, n_ctx = list(prompt), model.config.sizes.n_ctx
    draws = generator(seed, "sample", row).random(tokens)
    for draw in draws:
        seen = ids[context_start(len(ids), n_ctx) :]
        with torch.no_grad():
            logits = model(torch.tensor([seen]))[:, -1].numpy()
        ids.append(int(choose(logits, np.array([draw]), how)[0]))
    return ids[len(prompt) :]


@pytest.mark.parametrize("positions", ["rotary", "learned", "sinusoidal", "none"])
@pytest.mark.parametrize("how", [Sampling(0.0), Sampling(1.0), Sampling(0.7, top_k=5, banned=[2])])
def test_cached_generation_equals_reading_everything_anew(model_of, positions, how):
    model = model_of("CausalLM", D_VOCAB, positions=positions)
    prompts = [np.arange(n) % D_VOCAB for n in (1, 5, 14, 17, 40)]
    ours = generate(model, prompts, tokens=20, seed=3, how=how)
    for row, prompt in enumerate(prompts):
        assert ours[row].tolist() == plain(model, prompt, row, tokens=20, seed=3, how=how)


@pytest.mark.parametrize(
    "preset", [p.name for p in PRESETS.values() if p.layout.mixer == "attention" and "decoder" in p.stacks]
)
def test_generation_with_keys_settled_now_and_then_equals_reading_everything_anew(model_of, preset, monkeypatch):
    monkeypatch.setattr(caches, "SPLIT_FROM", 0)
    monkeypatch.setattr(caches, "ROOM", 3)
    layout = PRESETS[preset].layout
    heads = 1 if layout.start == "identity" else 4
    sizes = Sizes(d_vocab=D_VOCAB, d_model=16, n_layers=2, n_heads=heads, n_ctx=16)
    model = build(ModelConfig(kind="CausalLM", sizes=sizes, layout=layout).resolved(), 0)
    random = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.data.normal_(generator=random).mul_(0.5)
    prompts = [np.arange(n) % D_VOCAB for n in (1, 5, 14, 40)]
    for how in (Sampling(0.0), Sampling(0.7, top_k=5, banned=[2])):
        ours = generate(model, prompts, tokens=20, seed=3, how=how)
        for row, prompt in enumerate(prompts):
            assert ours[row].tolist() == plain(model, prompt, row, tokens=20, seed=3, how=how)


@pytest.mark.parametrize("sizes", [{"n_ctx": 1}, {"n_ctx": 2}, {"n_kv_heads": 1}])
def test_tiny_windows_and_shared_key_heads_generate_too(model_of, sizes):
    model = model_of("CausalLM", D_VOCAB, **sizes)
    (ids,) = generate(model, [np.array([3, 4])], tokens=7, how=Sampling(0.0), seed=0)
    assert ids.tolist() == plain(model, [3, 4], 0, tokens=7, how=Sampling(0.0), seed=0)


def test_a_prompt_continues_the_same_alone_and_among_others(model_of):
    model = model_of("CausalLM", D_VOCAB)
    prompt = np.array([1, 2, 3, 4])
    alone = generate(model, [prompt], tokens=20, how=Sampling(1.0), seed=0)[0]
    among = generate(model, [prompt, np.array([7]), np.arange(25)], tokens=20, how=Sampling(1.0), seed=0)[0]
    assert alone.tolist() == among.tolist()


@given(st.integers(1, 500), st.integers(1, 64))
def test_the_context_always_fits_and_is_never_short_without_need(length, n_ctx):
    start = context_start(length, n_ctx)
    assert 1 <= length - start <= n_ctx
    assert start == 0 or length - start > n_ctx - max(1, n_ctx // 4)


def test_choice_follows_the_softmax():
    logits = np.array([0.3, -1.0, 2.0, 0.0])
    draws = (np.arange(20_000) + 0.5) / 20_000
    ids = choose(np.tile(logits, (20_000, 1)), draws, Sampling(0.5))
    p = np.exp(logits / 0.5) / np.exp(logits / 0.5).sum()
    np.testing.assert_allclose(np.bincount(ids) / 20_000, p, atol=1e-4)


def test_next_to_no_temperature_takes_the_largest_without_a_word():
    logits = np.array([[0.3, -1.0, 2.0, 0.0]], dtype=np.float32)  # warnings are errors here
    assert choose(logits, np.array([0.5]), Sampling(1e-310, banned=[0])).tolist() == [2]


@settings(max_examples=200)
@given(
    st.lists(st.integers(-200, 200).map(lambda i: i / 8), min_size=1, max_size=12),
    st.floats(0, 1, exclude_max=True),
    st.floats(0.05, 5),
    st.integers(0, 12),
    st.floats(0.01, 1),
)
def test_choice_stays_inside_top_k_and_top_p(values, draw, temperature, top_k, top_p):
    logits = np.array([values])
    (chosen,) = choose(logits, np.array([draw]), Sampling(temperature, top_k, top_p))
    larger = sum(v > values[chosen] for v in values)
    assert top_k == 0 or larger < top_k
    p = np.exp(logits[0] / temperature - logits.max() / temperature)
    if top_k:
        p[logits[0] < np.sort(logits[0])[-min(top_k, len(values))]] = 0
    assert p[p > p[chosen] * (1 + 1e-9)].sum() <= top_p * p.sum() * (1 + 1e-9)


@pytest.mark.parametrize("top_p", [0.01, 0.5, 0.9, 0.999])
def test_top_p_of_a_large_vocabulary_keeps_what_sorting_all_of_it_keeps(top_p):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(200, 3000)).round(2) * rng.uniform(0.1, 6, size=(200, 1))
    draws = rng.random(200)
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    for row in p:
        order = np.argsort(-row, kind="stable")
        before = np.concatenate(([0.0], row[order].cumsum()[:-1]))
        row[order[before >= top_p * row.sum()]] = 0
    passed = p.cumsum(axis=1) <= draws[:, None] * p.sum(axis=1, keepdims=True)
    assert choose(logits, draws, Sampling(1.0, top_p=top_p)).tolist() == passed.sum(axis=1).tolist()


@given(st.lists(st.floats(-50, 50), min_size=2, max_size=8), st.sampled_from([0.0, 0.5, 1 - 2**-53]))
def test_banned_and_impossible_tokens_are_never_chosen(values, draw):
    logits = np.array([[*values, np.inf * -1]])
    for temperature in (0.0, 1.0):
        (chosen,) = choose(logits, np.array([draw]), Sampling(temperature, banned=[0]))
        assert 0 < chosen < len(values)


def test_two_threads_that_generate_at_once_leave_the_number_of_torch_threads_as_it_was(model_of, monkeypatch):
    """Each put back what it had found, the later one the single thread that the earlier one had asked for."""
    model, continued = model_of("CausalLM", D_VOCAB), generation._continued
    both_inside, first_is_out, before = threading.Barrier(2, timeout=60), threading.Event(), torch.get_num_threads()
    seen = []

    def inside(*args):
        first_inside.set()
        both_inside.wait()
        if threading.current_thread().name == "second":
            first_is_out.wait(60)
        return continued(*args)

    def go():
        generate(model, [np.array([1])], tokens=2, how=Sampling(0.0), seed=0)

    def started(name, do):
        thread = threading.Thread(name=name, target=do)
        thread.start()
        return thread

    first_inside = threading.Event()
    monkeypatch.setattr(generation, "_continued", inside)
    try:
        torch.set_num_threads(2)
        first = started("first", go)
        assert first_inside.wait(60)
        second = started("second", go)
        first.join()
        first_is_out.set()
        second.join()
        started("later", lambda: seen.append(torch.get_num_threads())).join()
        assert seen == [2]
    finally:
        torch.set_num_threads(before)
