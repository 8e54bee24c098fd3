"""What `machine.compile` compiles: a task's whole loss, one graph, made once, and the same numbers."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch._dynamo.config

from qkv.recipe import Request
from qkv.recipe.build import assemble
from qkv.recipe.request import resolve
from qkv.training.dropout import make_drop


@pytest.mark.filterwarnings("default")  # the compiler warns of itself
@pytest.mark.parametrize("preset", ["fast", "gpt2", "llama", "modern"])
def test_the_loss_of_every_step_is_one_graph_and_the_same_numbers(preset: str, small_text: Path) -> None:
    sizes = {"d_model": 32, "n_layers": 2, "n_heads": 2, "n_ctx": 32, "dropout": 0.1}
    request = Request(source=str(small_text), tokenizer="char", preset=preset, steps=3, set=sizes, precision="fp32")
    config, corpus, _ = resolve(request, None)
    parts = assemble(config, corpus)
    loss = torch.compile(parts.task.loss, backend="eager", fullgraph=True)
    torch._dynamo.reset()  # of the models before
    parameters = [entry.parameter for entry in parts.catalogue]
    with torch._dynamo.config.patch(error_on_recompile=True):
        for step in range(3):
            examples = np.arange(4) + 4 * step
            batch = parts.task.train_batch(corpus, parts.model.config.sizes, config.seed, step, examples)
            drop = make_drop(0.1, config.seed, step, examples)
            (one, n), (other, _) = loss(parts.model, batch, drop), parts.task.loss(parts.model, batch, drop)
            slopes = [torch.autograd.grad(nats / n, parameters) for nats in (one, other)]
            torch.testing.assert_close(one, other, rtol=1e-5, atol=0)
            for ours, theirs in zip(*slopes, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)
