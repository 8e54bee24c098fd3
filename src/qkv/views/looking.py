"""Attention on texts, by running the run's own model: every number of every head.

A text of which the tokenizer makes fewer than two tokens is left out; one that is longer than the page shows is cut,
and its name says so. Longer texts on a live page are `long`'s.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from qkv.models.layout import require_attention
from qkv.views.heads import attention_text, longest_in
from qkv.views.looker import Looker, Words
from qkv.views.payloads import AttentionText, SampleNote

__all__ = ["attention_on", "name_of", "texts_to_show", "title_of", "whole"]


def texts_to_show(asked: Sequence[str], samples: Sequence[SampleNote]) -> list[tuple[str, str]]:
    """(name, text) of what attention is shown on: the texts that were asked for, else the run's last sample."""
    if asked:
        return [(name_of(text), text) for text in asked]
    if not samples:
        return []
    last = samples[-1]
    if not last.continues:
        return [(f"{last.given} {name_of(last.prompt)}", last.prompt)]
    return [(f"the sample of step {last.step:,}", last.prompt + last.text)]


def name_of(text: str) -> str:
    """A text in quotation marks, its beginning where it is long."""
    line = " ".join(text.split())
    return f"“{line[:28]}…”" if len(line) > 29 else f"“{line}”"


def title_of(name: str, words: Words) -> str:
    """The name of a text, with what was left out of it."""
    n = len(words.tokens)
    return f"{name}, the first {n:,} of {words.n_all:,} tokens" if words.n_all > n else name


def attention_on(
    looker: Looker, texts: Sequence[tuple[str, str]], steps: Sequence[int] = ()
) -> tuple[AttentionText, ...]:
    """Every head's pattern on each of `texts` ((name, text) pairs): the first at `steps`, the others at the last.

    Of a model of images the texts are paths of images.

    Raises UserError where the weights are missing or do not fit the configuration.
    """
    sizes = looker.config.model.sizes
    longest = longest_in(sizes.n_layers * sizes.n_heads, causal=looker.causal)
    found: list[AttentionText] = []
    for name, text in texts:
        if looker.reads_images:
            words = looker.image(Path(text))
        elif len(looker.tokenizer.encode_whole(text, special=looker.marks)) < 2:
            continue
        else:
            words = looker.words(text, longest)
        title = title_of(name, words) + (", in the encoder" if looker.encodes else "")
        found.append(whole(looker, words, title, steps=() if found else steps))
    return tuple(found)


def whole(
    looker: Looker, words: Words, origin: str, *, steps: Sequence[int] = (), changes: Sequence[str] = ()
) -> AttentionText:
    """Every number of every head on a text, at each of `steps`; without any, under the weights of the last step."""
    require_attention(looker.config.model.layout)
    n_layers = looker.config.model.sizes.n_layers
    at = list(steps) or [looker.last_step()]
    by_step = []
    for step in at:
        with torch.inference_mode():
            _, record = looker.reader(step, changes).forward_recorded(words.ids)
        by_step.append([record[f"L{layer}.pattern"][0].float().numpy() for layer in range(n_layers)])
    return attention_text(words.tokens, by_step, steps=at, origin=origin, causal=looker.causal)
