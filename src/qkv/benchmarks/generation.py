"""Tokens a second of greedy text generation, ours and Hugging Face's `generate`: the same shape, random weights."""

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
            sides["HF GPT-2"] = _rate(batch * tokens, _theirs(batch, tokens))
        for preset in ("gpt2", "modern"):
            sides[f"qkv {preset}"] = _rate(batch * tokens, _ours(batch, tokens, preset))
        peers = dict.fromkeys((side for side in sides if side.startswith("qkv")), "HF GPT-2")
        found = alternate(sides, session.rounds)
        session.record(f"4 x 128, {tokens} tokens, {batch} at a time", found, "tokens/s", peers=peers)


def _rate(tokens: int, call: Callable[[], Any]) -> Callable[[], float]:
    def turn() -> float:
        began = time.perf_counter()
        call()
        return tokens / (time.perf_counter() - began)

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
