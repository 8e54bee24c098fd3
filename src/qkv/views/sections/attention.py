"""Attention on texts, pairs and images, by running the run's own model: every number of every head.

A text of which the tokenizer makes fewer than two tokens is refused; one that is longer than the page shows is cut, and
its name says so. Longer texts on a live page are `long_text`'s.

Of a model with an encoder and a decoder there are three attentions. Cross-attention comes first, which says where in
the source the decoder looks while it writes each token; then the source by itself, and what was written by itself.
Bahdanau et al. 2014 (arXiv 1409.0473) call the first an alignment; that a head looks at a word is not yet a reason for
what it writes (Jain and Wallace 2019, arXiv 1902.10186).
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from qkv.data.pairs import ARROW, encode_lines, end_of, line_of, start_of
from qkv.errors import UserError
from qkv.jsontypes import JsonMapping
from qkv.models.layout import Patches, require_attention
from qkv.tasks import PredictOptions
from qkv.tasks.image import EXHIBITS
from qkv.tasks.translate import Translate
from qkv.telemetry import Telemetry
from qkv.views.report.packed import pack
from qkv.views.sections.heads import PATTERN_BYTES, AttentionText, Picture, attention_text, longest_in
from qkv.views.sections.samples import SampleNote
from qkv.views.viewer import LONGEST_TEXT, Viewer, Words
from qkv.words import many, percent


@dataclass(frozen=True, eq=False)
class Exhibit:
    """A validation image that a run keeps."""

    name: str
    label: str
    """Its class."""
    pixels: np.ndarray
    """uint8 [channels, height, width]."""


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


def titled(name: str, tokens: Sequence[str], n_all: int) -> str:
    """The name of a text, with what was left out of it: of `n_all` tokens these are shown."""
    return f"{name}, the first {len(tokens):,} of {n_all:,} tokens" if n_all > len(tokens) else name


def attention_on(
    viewer: Viewer, texts: Sequence[tuple[str, str]], steps: Sequence[int] = ()
) -> tuple[AttentionText, ...]:
    """Every head's pattern on each of `texts` ((name, text) pairs): the first at `steps`, the others at the last.

    Of a model of images the texts are paths of images.

    Raises UserError for a text of fewer than two tokens, and where the weights are missing or do not fit the
    configuration; SourceError for an image that cannot be read.
    """
    sizes = viewer.config.model.sizes
    longest = longest_in(sizes.n_layers * sizes.n_heads * n_attentions(viewer), causal=viewer.causal)
    found: list[AttentionText] = []
    for name, text in texts:
        at = () if found else steps
        if viewer.encodes:
            pair = read_pair(viewer, text, longest)
            found += pair_attention(viewer, pair, titled(name, pair.source_tokens, pair.n_all), steps=at)
            continue
        words = viewer.image(Path(text)) if viewer.reads_images else viewer.words(text, longest)
        picture = picture_of(viewer, words) if viewer.reads_images else None
        found.append(whole(viewer, words, titled(name, words.tokens, words.n_all), steps=at, picture=picture))
    return tuple(found)


def exhibited(viewer: Viewer, exhibits: Sequence[Exhibit], steps: Sequence[int] = ()) -> tuple[AttentionText, ...]:
    """Every head's pattern on the validation images that a run keeps, on as many as a page can hold every number of, at
    least one: the first at `steps`, the others at the last.
    """
    sizes = viewer.config.model.sizes
    n = max(1, int(PATTERN_BYTES / (sizes.n_layers * sizes.n_heads * sizes.n_ctx**2 * 4 / 3)))
    found: list[AttentionText] = []
    for exhibit in exhibits[:n]:
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
    require_attention(viewer.config.model.sizes, viewer.config.model.layout)
    n_layers = viewer.config.model.sizes.n_layers
    at = list(steps) or [viewer.last_step()]
    by_step = []
    for step in at:
        with torch.inference_mode():
            _, record = viewer.reader(step, changes).forward_recorded(words.ids)
        by_step.append([record[f"L{layer}.pattern"][0].float().numpy() for layer in range(n_layers)])
    return attention_text(
        words.tokens,
        by_step,
        steps=at,
        origin=origin,
        causal=viewer.causal,
        picture=picture,
        layout=viewer.config.model.layout,
    )


@dataclass(frozen=True, eq=False)
class Pair:
    """A source and its target as a model reads them."""

    source: Tensor
    """int64 [1, source_pos], the end mark with it."""
    inputs: Tensor
    """int64 [1, target_pos]: the start mark, then all that was written."""
    source_tokens: tuple[str, ...]
    input_tokens: tuple[str, ...]
    written: tuple[str, ...]
    """What each target position writes, the end mark last."""
    n_all: int
    """Tokens of the whole source."""


def n_attentions(viewer: Viewer) -> int:
    """How many attentions each layer has: three on a pair."""
    return 3 if viewer.encodes else 1


def read_pair(viewer: Viewer, text: str, longest: int) -> Pair:
    """`SOURCE => TARGET` as its model was trained on it, either side cut to `longest` tokens; for a source alone the
    newest weights write a target, as `qkv predict` does.

    Raises UserError as `read_source`.
    """
    tokenizer, source = viewer.tokenizer, read_source(viewer, text, longest)
    line, _, target = (line_of(side) for side in text.partition(ARROW))
    longest = min(longest, viewer.config.model.sizes.n_ctx)
    if not target:
        with viewer.turn:
            target = Translate().predict(viewer.model(), tokenizer, [line], PredictOptions(cut=True))[0]
    written = _cut(encode_lines(tokenizer, [target])[0], longest, end_of(tokenizer))
    inputs = np.insert(written[:-1], 0, start_of(tokenizer))
    return Pair(
        source=source.ids,
        inputs=torch.from_numpy(inputs)[None],
        source_tokens=source.tokens,
        input_tokens=tuple(tokenizer.token(int(i)) for i in inputs),
        written=tuple(tokenizer.token(int(i)) for i in written),
        n_all=source.n_all,
    )


def read_source(viewer: Viewer, text: str, longest: int) -> Words:
    """What stands before an arrow, the end mark with it, cut to `longest` tokens.

    Raises UserError for more than `LONGEST_TEXT` characters, and for a source without a token.
    """
    if len(text) > LONGEST_TEXT:
        raise UserError(f"the text has {len(text):,} characters; expected at most {LONGEST_TEXT:,}: shorten it")
    tokenizer, line = viewer.tokenizer, line_of(text.partition(ARROW)[0])
    whole = encode_lines(tokenizer.of_source, [line])[0]
    if not line or len(whole) < 2:
        raise UserError(f"the text has {many(len(whole) - 1, 'token')}; expected at least 1: type a longer one")
    ids = _cut(whole, min(longest, viewer.config.model.sizes.n_ctx), end_of(tokenizer))
    return Words(torch.from_numpy(ids)[None], tuple(tokenizer.token(int(i)) for i in ids), len(whole))


def _cut(ids: np.ndarray, longest: int, end: int) -> np.ndarray:
    return ids if len(ids) <= longest else np.append(ids[: longest - 1], end)


def pair_attention(
    viewer: Viewer, pair: Pair, origin: str, *, steps: Sequence[int] = (), changes: Sequence[str] = ()
) -> tuple[AttentionText, ...]:
    """Every number of every head on a pair, at each of `steps` (without any, the last): cross-attention, the encoder's
    and the decoder's own."""
    at = list(steps) or [viewer.last_step()]
    records = []
    for step in at:
        with torch.inference_mode():
            records.append(viewer.model(step, changes).forward_recorded(pair.source, pair.inputs)[1])
    n_layers = viewer.config.model.sizes.n_layers

    def patterns(site: str) -> list[list[np.ndarray]]:
        names = [f"{site.format(layer)}.pattern" for layer in range(n_layers)]
        return [[record[name][0].float().numpy() for name in names] for record in records]

    told = {"steps": at, "origin": origin, "layout": viewer.config.model.layout}
    return (
        attention_text(
            pair.written, patterns("dec.L{}.cross"), keys=pair.source_tokens, site="cross", causal=False, **told
        ),
        attention_text(pair.source_tokens, patterns("enc.L{}"), site="enc", causal=False, **told),
        attention_text(pair.input_tokens, patterns("dec.L{}"), site="dec", causal=True, **told),
    )


def exhibits_of(telemetry: Telemetry | None) -> list[Exhibit]:
    """The images of a run; none of one without telemetry, or from before images were kept."""
    kept: Sequence[JsonMapping] = (telemetry.facts() if telemetry else {}).get(EXHIBITS) or ()
    return [
        Exhibit(
            f"validation image {one['number']:,}",
            str(one["label"]),
            np.frombuffer(base64.b64decode(one["pixels"]), "u1").reshape(one["shape"]),
        )
        for one in kept
    ]


def picture_of(viewer: Viewer, image: Words, label: str = "") -> Picture:
    """The image that some positions are patches of, with what the newest weights take it for; `label` is its class."""
    config = viewer.config.model
    assert config.patches is not None, "a model of images has patches"
    with torch.inference_mode():
        chances = viewer.model()(image.ids)[0].float().softmax(0)
    top = int(chances.argmax())
    said = f"classified as {config.classes[top]} with probability {percent(float(chances[top]))}"
    said += f" at step {viewer.last_step():,}"
    return Picture(
        pixels=pack(image.ids[0].numpy().transpose(1, 2, 0).astype("u1")),
        grid=config.patches.grid,
        frame=_frame(config.patches),
        before=int(config.layout.pool == "class"),
        pooled="class" if config.layout.pool == "class" else "mean",
        said=f"of class {label}, {said}" if label else said,
    )


def _frame(cut: Patches) -> tuple[float, float, float, float]:
    """Where the middles of all patches lie, each as wide as the way to the next: shares of the image."""
    (rows, columns), (left, _, top, _) = cut.grid, cut.padding
    before = (cut.patch - cut.step) / 2
    x, y = (before - left) / cut.width, (before - top) / cut.height
    return x, y, x + columns * cut.step / cut.width, y + rows * cut.step / cut.height
