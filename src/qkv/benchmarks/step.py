"""One training step of the GPT-2 layout, ours and Hugging Face's, on the same batch; and of our own layout beside it.

The same architecture means the same number of parameters and the same products; a share of the peak is the products of
a step (6 a parameter and position, and 12 d_model a layer and pair of positions for attention) over its time, against
the best 1,024 x 1,024 product of the same precision on the same threads.
"""

import dataclasses
from typing import Any, NamedTuple

import torch

from qkv.benchmarks.session import Session, alternate
from qkv.benchmarks.sides import gflops, our_step, precisions, seconds, their_step
from qkv.models import Layout, ModelConfig, Sizes
from qkv.presets import PRESETS
from qkv.randomness import generator
from qkv.tasks import Batch, Causal

__all__ = ["SHAPES", "Shape", "measure", "our_model", "their_model"]

SLICE = 1.0
"""Seconds of steps in a row that make one turn, about."""


class Shape(NamedTuple):
    """A model and its batch."""

    name: str
    n_layers: int
    n_heads: int
    d_model: int
    n_ctx: int
    windows: int
    d_vocab: int = 65

    def sizes(self) -> Sizes:
        """As ours are named."""
        return Sizes(
            d_vocab=self.d_vocab,
            d_model=self.d_model,
            n_layers=self.n_layers,
            n_heads=self.n_heads,
            n_ctx=self.n_ctx,
        ).resolved()


SHAPES = (
    Shape("nanoGPT's CPU shape: 4 x 128, 12 windows of 64", 4, 4, 128, 64, 12),
    Shape("nanoGPT's GPU shape: 6 x 384, 8 windows of 256", 6, 6, 384, 256, 8),
    Shape("4 x 256 over 8,192 words, 8 windows of 128", 4, 4, 256, 128, 8, 8192),
)


def measure(session: Session) -> None:
    """Every shape in every precision that is worth it here."""
    there = session.transformers() is not None
    for shape in SHAPES[:1] if session.asked.quick else SHAPES:
        ids = torch.from_numpy(generator("step").integers(shape.d_vocab, size=(shape.windows, shape.n_ctx + 1)))
        sides: dict[str, Any] = {}
        for precision in precisions():
            if there:
                step = their_step(their_model(shape), precision)
                batch = {"input_ids": ids[:, :-1], "labels": ids[:, :-1]}
                sides[f"HF GPT-2, {precision}"] = _timed(step, batch)
            for name, layout in (("gpt2", _layout("gpt2")), ("fast", _layout("fast"))):
                step = our_step(our_model(shape, layout), Causal(), precision)
                batch = Batch(ids[:, :-1], ids[:, 1:].flatten())
                sides[f"qkv {name}, {precision}"] = _timed(step, batch)
        found = alternate(sides, session.rounds)
        milliseconds = {side: [1e3 * value for value in values] for side, values in found.items()}
        peers = {side: f"HF GPT-2, {side.rpartition(' ')[2]}" for side in sides if side.startswith("qkv")}
        peaks = {precision: gflops(precision) for precision in precisions()}
        notes = {
            side: f"{100 * products(shape) / min(values) / 1e9 / peaks[side.rpartition(' ')[2]]:.0f} % of"
            f" {peaks[side.rpartition(' ')[2]]:.0f} GFLOP/s"
            for side, values in found.items()
        }
        session.record(shape.name, milliseconds, "ms a step", peers=peers, lower_is_better=True, notes=notes)


def _timed(step: Any, batch: Any) -> Any:
    """A turn of about `SLICE` seconds: the mean of the steps in it."""
    step(batch)
    times = max(1, min(20, round(SLICE / max(1e-4, seconds(lambda: step(batch), 1)))))
    return lambda: seconds(lambda: step(batch), times)


def _layout(preset: str) -> Layout:
    return PRESETS[preset].layout


def products(shape: Shape) -> float:
    """Floating-point operations of the products of one step, of the GPT-2 layout."""
    positions = shape.windows * shape.n_ctx
    weights = 12 * shape.n_layers * shape.d_model**2 + shape.d_vocab * shape.d_model
    return positions * (6.0 * weights + 12 * shape.n_layers * shape.d_model * shape.n_ctx)


def our_model(shape: Shape, layout: Layout) -> ModelConfig:
    """Ours of that shape."""
    return ModelConfig(kind="CausalLM", sizes=shape.sizes(), layout=dataclasses.replace(layout, dropout=0.0))


def their_model(shape: Shape) -> Any:
    """GPT-2 of that shape, without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=shape.d_vocab,
            n_positions=shape.n_ctx,
            n_embd=shape.d_model,
            n_layer=shape.n_layers,
            n_head=shape.n_heads,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
        )
    )
