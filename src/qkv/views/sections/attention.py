"""Attention on texts, pairs and images, by running the run's own model: every number of every head.

A text of which the tokenizer makes fewer than two tokens is refused; one that is longer than the page shows is cut, and
its name says so. Longer texts on a live page are `long`'s.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from qkv.models.layout import require_attention
from qkv.views.payloads import AttentionText, Picture, SampleNote
from qkv.views.sections.heads import attention_text, longest_in
from qkv.views.sections.pairs import n_maps, pair_attention, read_pair
from qkv.views.sections.pictures import Exhibit, how_many_fit, picture_of
from qkv.views.viewer import Viewer, Words

__all__ = ["attention_on", "exhibited", "name_of", "texts_to_show", "title_of", "titled", "whole"]


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
    return titled(name, len(words.tokens), words.n_all)


def titled(name: str, n: int, n_all: int) -> str:
    """The same of a text of which `n` tokens are shown."""
    return f"{name}, the first {n:,} of {n_all:,} tokens" if n_all > n else name


def attention_on(
    viewer: Viewer, texts: Sequence[tuple[str, str]], steps: Sequence[int] = ()
) -> tuple[AttentionText, ...]:
    """Every head's pattern on each of `texts` ((name, text) pairs): the first at `steps`, the others at the last.

    Of a model of images the texts are paths of images.

    Raises UserError for a text of fewer than two tokens, and where the weights are missing or do not fit the
    configuration; SourceError for an image that cannot be read.
    """
    sizes = viewer.config.model.sizes
    heads = sizes.n_layers * (n_maps(sizes.n_heads) if viewer.encodes else sizes.n_heads)
    longest = longest_in(heads, causal=viewer.causal)
    found: list[AttentionText] = []
    for name, text in texts:
        at = () if found else steps
        if viewer.reads_images:
            words = viewer.image(Path(text))
            found.append(whole(viewer, words, title_of(name, words), steps=at, picture=picture_of(viewer, words)))
        elif viewer.encodes:
            pair = read_pair(viewer, text, longest)
            found += pair_attention(viewer, pair, titled(name, len(pair.source_tokens), pair.n_all), steps=at)
        else:
            words = viewer.words(text, longest)
            found.append(whole(viewer, words, title_of(name, words), steps=at))
    return tuple(found)


def exhibited(viewer: Viewer, exhibits: Sequence[Exhibit], steps: Sequence[int] = ()) -> tuple[AttentionText, ...]:
    """Every head's pattern on the validation images that a run keeps: the first at `steps`, the others at the last."""
    found: list[AttentionText] = []
    for exhibit in exhibits[: how_many_fit(viewer)]:
        words = viewer.pixels(exhibit.pixels)
        picture = picture_of(viewer, words, exhibit.label)
        found.append(whole(viewer, words, exhibit.name, steps=() if found else steps, picture=picture))
    return tuple(found)


def whole(
    viewer: Viewer,
    words: Words,
    origin: str,
    *,
    steps: Sequence[int] = (),
    changes: Sequence[str] = (),
    picture: Picture | None = None,
) -> AttentionText:
    """Every number of every head on a text, at each of `steps`; without any, under the weights of the last step."""
    require_attention(viewer.config.model.layout)
    n_layers = viewer.config.model.sizes.n_layers
    at = list(steps) or [viewer.last_step()]
    by_step = []
    for step in at:
        with torch.inference_mode():
            _, record = viewer.reader(step, changes).forward_recorded(words.ids)
        by_step.append([record[f"L{layer}.pattern"][0].float().numpy() for layer in range(n_layers)])
    return attention_text(words.tokens, by_step, steps=at, origin=origin, causal=viewer.causal, picture=picture)
