"""Tokens a second of greedy text generation, ours and Hugging Face's `generate`: the same shape, random weights.

At this size a second thread can cost more than it does, so Hugging Face runs with torch's threads and with one, and
ours is compared with the faster.
"""

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from qkv.benchmarks.processes import Side, Turn
from qkv.benchmarks.session import Session, alternate
from qkv.models import CausalLM, ModelConfig, Sizes
from qkv.presets import PRESETS
from qkv.tasks.generation import Sampling, generate

N_CTX, PROMPT = 256, 8
QUICK_TOKENS = 60


def measure(session: Session) -> None:
    """One sequence, then sixteen."""
    there = session.has_transformers()
    tokens = QUICK_TOKENS if session.asked.quick else N_CTX - 2 * PROMPT
    for batch in (1, 16):
        sides: dict[str, Side] = {}
        if there:
            sides["HF GPT-2"] = functools.partial(_theirs, batch, tokens)
            if torch.get_num_threads() > 1:
                sides["HF GPT-2, one thread"] = functools.partial(_theirs, batch, tokens, alone=True)
        for preset in ("gpt2", "modern"):
            sides[f"qkv {preset}"] = functools.partial(_ours, batch, tokens, preset)
        found = alternate(sides, session.rounds)
        peer = max(
            (side for side in sides if side.startswith("HF")),
            key=lambda side: statistics.median(found[side]),
            default="",
        )
        peers = {side: peer for side in sides if side.startswith("qkv")}
        session.record(f"4 x 128, {tokens} tokens, {batch} at a time", found, "tokens/s", peers=peers)


def _rate(tokens: int, call: Callable[[], object]) -> Turn:
    def turn() -> float:
        began = time.perf_counter()
        call()
        return tokens / (time.perf_counter() - began)

    return turn


def _theirs(batch: int, tokens: int, *, alone: bool = False) -> Turn:
    """`alone`: on one thread."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=65, n_positions=N_CTX, n_embd=128, n_layer=4, n_head=4, bos_token_id=0, eos_token_id=None
    )
    model: Any = GPT2LMHeadModel(config).eval()
    prompt = torch.ones(batch, PROMPT, dtype=torch.int64)
    how = {"attention_mask": torch.ones_like(prompt), "do_sample": False, "pad_token_id": 0}
    if alone:
        torch.set_num_threads(1)
    return _rate(batch * tokens, lambda: model.generate(prompt, max_new_tokens=tokens, **how))


def _ours(batch: int, tokens: int, preset: str) -> Turn:
    sizes = Sizes(d_vocab=65, d_model=128, n_layers=4, n_heads=4, n_ctx=N_CTX)
    model = CausalLM(ModelConfig(kind="CausalLM", sizes=sizes, layout=PRESETS[preset].layout).resolved())
    prompts = [np.ones(PROMPT, dtype=np.int64)] * batch
    return _rate(batch * tokens, lambda: generate(model, prompts, tokens=tokens, how=Sampling(0.0), seed=0))
