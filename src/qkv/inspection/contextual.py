"""Contextual vectors: what each token of a text has become after each layer.

Layer 0 is what enters the first block: the static row of W_E with positions (and a norm where the model has one there);
layer i is the residual stream after block i; the last is the same after the final norm, where there is one, which is
what the output matrix sees. In a causal model a token's vectors hold what stands before it; in a masked model, both
sides. Vectors of different runs have different bases: compare cosines within a run, never coordinates across runs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from qkv.data.pairs import encode_lines
from qkv.errors import AddressError, UserError, unknown, which
from qkv.models.zoo import Model
from qkv.shapes import Float, Int64
from qkv.tokenizers.tokenizer import Tokenizer

_WINDOWS_AT_ONCE = 16


@dataclass(frozen=True, kw_only=True, eq=False)
class Contextual:
    """The vectors of one text."""

    text: str
    tokens: list[str]
    """As the tokenizer names them."""
    ids: Int64[np.ndarray, "pos"]
    layers: list[str]
    """Addresses of the activations: embed, L0.resid_post, ..., and norm_f where the model has a final norm."""
    vectors: Float[np.ndarray, "layers pos d_model"]
    """float32, as a model has them."""
    offsets: Int64[np.ndarray, "pos 2"] | None = None
    """First character and end of each token in the text, both 0 of one that is put around it; None where the tokenizer
    gives none."""

    @property
    def pooled(self) -> Float[np.ndarray, "layers d_model"]:
        """The mean over the text's tokens."""
        return self.vectors.mean(axis=1)

    def at(self, layer: int | str) -> Float[np.ndarray, "pos d_model"]:
        """The vectors of one layer, by number (negative from the end) or address.

        Raises AddressError for a layer that is not there.
        """
        if isinstance(layer, str):
            if layer not in self.layers:
                raise AddressError(unknown("layer", layer, self.layers))
            layer = self.layers.index(layer)
        if not -len(self.layers) <= layer < len(self.layers):
            raise AddressError(f"layer {layer} was asked for; there are 0 to {len(self.layers) - 1}")
        return self.vectors[layer]


def contextual_vectors(
    model: Model, tokenizer: Tokenizer | None, texts: Sequence[str], *, offsets: bool = False
) -> list[Contextual]:
    """One `Contextual` per text, with `offsets` if asked for.

    A text longer than n_ctx is read in windows of n_ctx side by side, each by itself.

    Raises UserError for a text without tokens.
    """
    return list(read_in_turn(model, tokenizer, texts, offsets=offsets, at_once=max(1, len(texts))))


def read_in_turn(
    model: Model, tokenizer: Tokenizer | None, texts: Sequence[str], *, offsets: bool = False, at_once: int = 64
) -> Iterator[Contextual]:
    """The same one after another, so that the vectors of `at_once` texts are in memory together and not of all."""
    if tokenizer is None:
        raise UserError("this run reads no text, so there are no vectors of texts; qkv predict asks it about images")
    reader = model.reader
    if reader is not model:  # a translation's encoder, which reads lines of the source
        tokenizer = tokenizer.of_source
        ids, lengths = encode_lines(tokenizer, [" ".join(text.split()) for text in texts])
        encoded = np.split(ids, np.cumsum(lengths)[:-1]) if texts else []
    else:
        encoded = [tokenizer.encode_whole(text) for text in texts]
    for i, (text, ids) in enumerate(zip(texts, encoded, strict=True)):
        if not len(ids) or (reader is not model and not text.split()):
            raise UserError(
                f"{text!r} has no tokens{which(i, len(texts))}, so there is no vector; give a text with at least"
                " one word"
            )
    places = [_offsets(tokenizer, text) if offsets and reader is model else None for text in texts]
    for first in range(0, len(texts), at_once):
        part = slice(first, first + at_once)
        found = _vectors(model, encoded[part])
        for text, ids, place, vectors in zip(texts[part], encoded[part], places[part], found, strict=True):
            yield Contextual(
                text=text,
                tokens=[tokenizer.token(int(t)) for t in ids],
                ids=ids,
                layers=_layers(model),
                vectors=vectors,
                offsets=place,
            )


def _vectors(model: Model, encoded: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Vectors float32 [layer, pos, d_model] of each text."""
    n_ctx, layers = model.config.sizes.n_ctx, _layers(model)
    windows = [(i, ids[a : a + n_ctx]) for i, ids in enumerate(encoded) for a in range(0, len(ids), n_ctx)]
    order = sorted(range(len(windows)), key=lambda w: len(windows[w][1]))
    read: dict[int, np.ndarray] = {}
    for first in range(0, len(order), _WINDOWS_AT_ONCE):
        chunk = order[first : first + _WINDOWS_AT_ONCE]
        read |= dict(zip(chunk, _read(model, [windows[w][1] for w in chunk], layers), strict=True))
    parts: list[list[np.ndarray]] = [[] for _ in encoded]
    for w, (i, _) in enumerate(windows):
        parts[i].append(read[w])
    return [np.concatenate(part, axis=1) for part in parts]


def _offsets(tokenizer: Tokenizer, text: str) -> np.ndarray | None:
    """Of the tokens of a text and of those around it."""
    found = tokenizer.offsets(text)
    before, after = (np.zeros((len(part), 2), dtype=np.int64) for part in tokenizer.around)
    return None if found is None else np.concatenate([before, found, after])


def _layers(model: Model) -> list[str]:
    """The activations that are kept, in order."""
    blocks = [f"L{layer}.resid_post" for layer in range(model.config.sizes.n_layers)]
    return ["embed", *blocks, *([] if isinstance(model.reader.norm_f, nn.Identity) else ["norm_f"])]


@torch.inference_mode()
def _read(model: Model, windows: Sequence[np.ndarray], layers: Sequence[str]) -> list[np.ndarray]:
    """Vectors float32 [layer, pos, d_model] of each window; shorter ones are padded, the padding cut off."""
    device = next(model.parameters()).device
    real = np.arange(max(map(len, windows))) < np.array([[len(ids)] for ids in windows])
    inputs = np.zeros(real.shape, dtype=np.int64)
    inputs[real] = np.concatenate(windows)
    kept: dict[str, Tensor] = {}
    reader = model.reader  # of an encoder-decoder the encoder

    def hook(name: str, x: Tensor) -> Tensor:
        name = name.removeprefix(reader.scope)
        if name in layers:
            kept[name] = x
        return x

    mask = None if real.all() else torch.from_numpy(real).to(device)
    reader.hidden(torch.from_numpy(inputs).to(device), mask=mask, hook=hook)
    vectors = torch.stack([kept[name] for name in layers], dim=1).float().cpu().numpy()
    return [row[:, : len(ids)] for row, ids in zip(vectors, windows, strict=True)]
