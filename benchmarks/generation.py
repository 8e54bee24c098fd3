"""Tokens per second of text generation against HF `generate`, the same shape and random weights, A B A B.

python benchmarks/generation.py [--rounds 5] [--tokens 200]
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch

from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.tasks.generation import Sampling, generate

SIZES = dict(d_vocab=65, d_model=128, n_layers=4, n_heads=4, n_ctx=256)
LAYOUTS = {
    "gpt2": Layout(positions="learned", norm="layer", norm_eps=1e-5, mlp="gelu_tanh", bias=True, start="gpt2"),
    "modern": Layout(qk_norm=True, tied=False, start="normal"),
}


def theirs(batch: int, tokens: int):
    """HF GPT-2 of this shape."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=65, n_positions=256, n_embd=128, n_layer=4, n_head=4, bos_token_id=0, eos_token_id=None
    )
    model = GPT2LMHeadModel(config).eval()
    prompt = torch.ones(batch, 8, dtype=torch.int64)
    mask = torch.ones_like(prompt)
    return lambda: model.generate(prompt, attention_mask=mask, max_new_tokens=tokens, do_sample=False, pad_token_id=0)


def ours(batch: int, tokens: int, name: str):
    """qkv's own, greedy."""
    model = build(ModelConfig(kind="CausalLM", sizes=Sizes(**SIZES), layout=LAYOUTS[name]), 0)
    prompts = [np.ones(8, dtype=np.int64)] * batch
    return lambda: generate(model, prompts, tokens=tokens, how=Sampling(0.0), seed=0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=200)
    args = parser.parse_args()
    for batch in (1, 16):
        sides = {"HF gpt2": theirs(batch, args.tokens)}
        sides |= {f"qkv {name}": ours(batch, args.tokens, name) for name in LAYOUTS}
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for side in sides.values():
            side()
        for _ in range(args.rounds):
            for name, side in sides.items():
                began = time.perf_counter()
                side()
                rates[name].append(batch * args.tokens / (time.perf_counter() - began))
        base = statistics.median(rates["HF gpt2"])
        for name, values in rates.items():
            median = statistics.median(values)
            print(f"batch {batch:2d}  {name:12s} {median:8,.0f} tokens/s  {median / base:.1f} x")


if __name__ == "__main__":
    main()
