"""Attention on chosen texts, by running the run's own model once: the one place of this room that computes.

Everything else of a report is read from the folder. A text that the tokenizer makes fewer than two tokens of is left
out; one that is longer than a report shows is cut, and its name says so.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from qkv.changes import plan_changes
from qkv.data.tokenizers import Tokenizer
from qkv.models import build
from qkv.models.matrices import Catalogue
from qkv.recipe import RunConfig, load_weights, run_matrix
from qkv.tasks import find_task
from qkv.tasks.image import one_image
from qkv.views.heads import LONGEST, attention_text
from qkv.views.payloads import AttentionText, SampleNote

__all__ = ["attention_on", "texts_to_show"]


def texts_to_show(asked: Sequence[str], samples: Sequence[SampleNote]) -> list[tuple[str, str]]:
    """(name, text) of what attention is shown on: the texts that were asked for, else the run's last sample."""
    if asked:
        return [(_name(text), text) for text in asked]
    if not samples:
        return []
    last = samples[-1]
    if not last.continues:
        return [(last.given, last.prompt)]
    return [(f"the sample of step {last.step:,}", last.prompt + last.text)]


def _name(text: str) -> str:
    line = " ".join(text.split())
    return f"“{line[:28]}…”" if len(line) > 29 else f"“{line}”"


def attention_on(
    folder: Path, config: RunConfig, tokenizer: Tokenizer | None, texts: Sequence[tuple[str, str]]
) -> tuple[AttentionText, ...]:
    """Every head's pattern on each of `texts` ((name, text) pairs) under the weights of the last step.

    Of a model of images the texts are paths of images, and `tokenizer` is None.

    Raises UserError where the weights are missing or do not fit the configuration.
    """
    model = build(config.model, config.seed)
    catalogue = Catalogue(model, tokenizer.readable if tokenizer is not None else None)
    plan = plan_changes(config.changes, catalogue, config.seed, run_matrix, resumed_at=1 << 60)
    plan.at_start().load_state(load_weights(folder / "model.safetensors"))
    model.eval()
    found = []
    for name, text in texts:
        title = name
        if tokenizer is None:
            inputs, tokens = one_image(Path(text), config.model)
        else:
            title, inputs, tokens = _words(config, tokenizer, name, text)
        if len(tokens) < 2:
            continue
        with torch.inference_mode():
            _, record = model.forward_recorded(inputs)
        patterns = [record[f"L{layer}.pattern"][0].float().numpy() for layer in range(config.model.sizes.n_layers)]
        found.append(attention_text(tokens, patterns, origin=title, causal=model.causal))
    return tuple(found)


def _words(config: RunConfig, tokenizer: Tokenizer, name: str, text: str) -> tuple[str, torch.Tensor, list[str]]:
    """(what the picture is called, ids [1, pos] of as much of the text as is shown, its tokens)."""
    longest = min(LONGEST, config.model.sizes.n_ctx)
    tokenizer.framed = bool(config.imported)
    ids = tokenizer.encode_whole(text, special=find_task(config.task).marks)
    title = f"{name}, the first {longest} of {len(ids)} tokens" if len(ids) > longest else name
    ids = ids[:longest]
    return title, torch.as_tensor(ids, dtype=torch.int64)[None], [tokenizer.token(int(i)) for i in ids]
