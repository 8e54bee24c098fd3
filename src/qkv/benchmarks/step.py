"""One training step of the GPT-2 layout, ours and Hugging Face's, on the same batch; and of our own layout beside it.

The same architecture means the same number of parameters and the same products; a share of the peak is the products of
a step (6 a parameter and position, and 12 d_model a layer and pair of positions for attention) over its time, against
the best 1,024 x 1,024 product of the same precision on the same threads (on a GPU the best 8,192 x 8,192 one, and a
shape of GPT-2's own size beside the others, both sides compiled too).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from qkv.benchmarks.processes import Side, Turn
from qkv.benchmarks.session import Session, alternate
from qkv.benchmarks.sides import gflops, our_step, precisions, seconds, their_step
from qkv.models import Layout, ModelConfig, Sizes
from qkv.presets import PRESETS
from qkv.randomness import generator
from qkv.tasks import Batch, Causal

BatchT = TypeVar("BatchT")

SLICE = 1.0
"""Seconds of steps in a row that make one turn, about."""


class Shape(NamedTuple):
    """A model and its batch; `name` says both."""

    name: str
    n_layers: int
    n_heads: int
    d_model: int
    n_ctx: int
    windows: int
    d_vocab: int = 65
    dropout: float = 0.0


SHAPES = (
    Shape("nanoGPT's CPU shape: 4 x 128, 12 windows of 64", 4, 4, 128, 64, 12),
    Shape("nanoGPT's GPU shape: 6 x 384, 8 windows of 256", 6, 6, 384, 256, 8),
    Shape("the same with its dropout of 0.2", 6, 6, 384, 256, 8, dropout=0.2),
    Shape("4 x 256 over 8,192 words, 8 windows of 128", 4, 4, 256, 128, 8, 8192),
)
ON_GPU = Shape("GPT-2's own: 12 x 768 over 50,257 words, 16 windows of 1,024", 12, 12, 768, 1024, 16, 50257)


def measure(session: Session) -> None:
    """Every shape in every precision that is worth it here."""
    device = session.asked.device
    shapes = SHAPES if device == "cpu" else (*SHAPES, ON_GPU)
    for shape in SHAPES[:1] if session.asked.quick else shapes:
        measure_shape(session, shape)


def measure_shape(session: Session, shape: Shape) -> None:
    """Both sides on one shape, in turn; on a GPU each compiled as well."""
    device, there = session.asked.device, session.has_transformers()
    found: dict[str, list[float]] = {}
    for precision in precisions(device):
        sides: dict[str, Side] = {}
        for compile in (False,) if device == "cpu" else (False, True):
            how = f"{', compiled' * compile}, {precision}"
            if there:
                sides[f"HF GPT-2{how}"] = functools.partial(_theirs, shape, precision, device, compile)
            for preset in ("gpt2", "fast"):
                sides[f"qkv {preset}{how}"] = functools.partial(_ours, shape, preset, precision, device, compile)
        found |= alternate(sides, session.rounds, apart=device == "cpu")
    peaks = {precision: gflops(precision, device) for precision in precisions(device)}
    session.record(
        shape.name,
        {side: [1e3 * value for value in values] for side, values in found.items()},
        "ms a step",
        peers={side: f"HF GPT-2,{side.partition(',')[2]}" for side in found if side.startswith("qkv")},
        lower_is_better=True,
        notes={side: _note(shape, min(values), peaks[side.rpartition(" ")[2]]) for side, values in found.items()},
    )


def _note(shape: Shape, best: float, peak: float) -> str:
    """Tokens a second, and the share of the peak."""
    tokens = shape.windows * shape.n_ctx / best
    return f"{tokens:,.0f} tokens/s, {100 * products(shape) / best / 1e9 / peak:.0f} % of {peak:,.0f} GFLOP/s"


def _ids(shape: Shape) -> Tensor:
    """The same on both sides: [windows, n_ctx + 1]."""
    return torch.from_numpy(generator("step").integers(shape.d_vocab, size=(shape.windows, shape.n_ctx + 1)))


def _theirs(shape: Shape, precision: str, device: str, compile: bool) -> Turn:
    ids = _ids(shape)[:, :-1]
    return _timed(their_step(their_model(shape), precision, device, compile), {"input_ids": ids, "labels": ids})


def _ours(shape: Shape, preset: str, precision: str, device: str, compile: bool) -> Turn:
    ids, model = _ids(shape), our_model(shape, PRESETS[preset].layout)
    step = our_step(model, Causal(), precision, device=device, compile=compile)
    return _timed(step, Batch(ids[:, :-1], ids[:, 1:].flatten()))


def _timed(step: Callable[[BatchT], float], batch: BatchT) -> Turn:
    """A turn of about `SLICE` seconds: the mean of the steps in it."""
    step(batch)
    times = max(1, min(20, round(SLICE / max(1e-4, seconds(lambda: step(batch), 1)))))
    return lambda: seconds(lambda: step(batch), times)


def products(shape: Shape) -> float:
    """Floating-point operations of the products of one step, of the GPT-2 layout."""
    positions = shape.windows * shape.n_ctx
    weights = 12 * shape.n_layers * shape.d_model**2 + shape.d_vocab * shape.d_model
    return positions * (6.0 * weights + 12 * shape.n_layers * shape.d_model * shape.n_ctx)


def our_model(shape: Shape, layout: Layout) -> ModelConfig:
    """Ours of that shape."""
    sizes = {name: getattr(shape, name) for name in ("d_vocab", "d_model", "n_layers", "n_heads", "n_ctx")}
    layout = dataclasses.replace(layout, dropout=shape.dropout)
    return ModelConfig(kind="CausalLM", sizes=Sizes(**sizes).resolved(), layout=layout)


def their_model(shape: Shape) -> nn.Module:
    """GPT-2 of that shape, which drops where ours does: of the embedding and of what each part adds."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=shape.d_vocab,
            n_positions=shape.n_ctx,
            n_embd=shape.d_model,
            n_layer=shape.n_layers,
            n_head=shape.n_heads,
            resid_pdrop=shape.dropout,
            embd_pdrop=shape.dropout,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
        )
    )
