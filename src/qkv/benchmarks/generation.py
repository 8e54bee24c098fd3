"""Tokens a second of greedy text generation, ours and Hugging Face's `generate`: the same shape, random weights.

At this size a second thread can cost more than it does, so Hugging Face runs with torch's threads and with one, and
ours is compared with the faster.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from qkv.benchmarks.session import Session, alternate
from qkv.models import ModelConfig, Sizes, build
from qkv.presets import PRESETS
from qkv.tasks.generation import Sampling, generate

__all__ = ["measure"]

N_CTX, PROMPT = 256, 8
QUICK_TOKENS = 60


def measure(session: Session) -> None:
    """One sequence, then sixteen."""
    there = session.transformers() is not None
    tokens = QUICK_TOKENS if session.asked.quick else N_CTX - 2 * PROMPT
    for batch in (1, 16):
        sides: dict[str, Callable[[], float]] = {}
        if there:
            theirs = _theirs(batch, tokens)
            sides["HF GPT-2"] = _rate(batch * tokens, theirs)
            if torch.get_num_threads() > 1:
                sides["HF GPT-2, one thread"] = _rate(batch * tokens, _alone(theirs))
        for preset in ("gpt2", "modern"):
            sides[f"qkv {preset}"] = _rate(batch * tokens, _ours(batch, tokens, preset))
        found = alternate(sides, session.rounds)
        peer = max(
            (side for side in sides if side.startswith("HF")),
            key=lambda side: statistics.median(found[side]),
            default="",
        )
        peers = {side: peer for side in sides if side.startswith("qkv")}
        session.record(f"4 x 128, {tokens} tokens, {batch} at a time", found, "tokens/s", peers=peers)


def _rate(tokens: int, call: Callable[[], Any]) -> Callable[[], float]:
    def turn() -> float:
        began = time.perf_counter()
        call()
        return tokens / (time.perf_counter() - began)

    return turn


def _alone(call: Callable[[], Any]) -> Callable[[], Any]:
    """The same on one thread."""

    def turn() -> Any:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return call()
        finally:
            torch.set_num_threads(threads)

    return turn


def _theirs(batch: int, tokens: int) -> Callable[[], Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=65, n_positions=N_CTX, n_embd=128, n_layer=4, n_head=4, bos_token_id=0, eos_token_id=None
    )
    model: Any = GPT2LMHeadModel(config).eval()
    prompt = torch.ones(batch, PROMPT, dtype=torch.int64)
    mask = torch.ones_like(prompt)
    return lambda: model.generate(prompt, attention_mask=mask, max_new_tokens=tokens, do_sample=False, pad_token_id=0)


def _ours(batch: int, tokens: int, preset: str) -> Callable[[], Any]:
    sizes = Sizes(d_vocab=65, d_model=128, n_layers=4, n_heads=4, n_ctx=N_CTX)
    model = build(ModelConfig(kind="CausalLM", sizes=sizes, layout=PRESETS[preset].layout).resolved(), 0)
    prompts = [np.ones(PROMPT, dtype=np.int64)] * batch
    return lambda: generate(model, prompts, tokens=tokens, how=Sampling(0.0), seed=0)
