"""Filling every [MASK] that a user typed in a text.

The literal string "[MASK]" is the mark; any other special-token string in a text is plain text, as the tokenizer reads
it. The text between marks is encoded piece by piece. Where spaces belong to the word behind them (bpe, unigram), a
space typed before a mark is left to the word that fills it. A text longer than n_ctx is seen through a window of n_ctx
tokens around each mark. Special tokens are never an answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from qkv.data.buckets import filled
from qkv.errors import UserError, which
from qkv.models.zoo import LanguageModel
from qkv.randomness import generator
from qkv.tasks.generation import Sampling, choose
from qkv.tasks.task import PredictOptions
from qkv.tokenizers.tokenizer import Tokenizer

MARK = "[MASK]"
_SPACE_IS_A_TOKEN = ("char", "byte")
_SPACE_IS_DROPPED = ("word", "wordpiece")
_TEXTS_AT_ONCE = 32


def fill(model: LanguageModel, tokenizer: Tokenizer, texts: Sequence[str], options: PredictOptions) -> list[str]:
    """Each text with its marks filled, the surest first, each seeing those already filled.

    temperature 0 or None takes the most probable token; otherwise tokens are drawn as in generation (top_k, top_p), by
    draws named (seed, "sample", index of the text).

    Raises UserError for a text without a mark.
    """
    blanks = _blanks(tokenizer, texts, options)
    draws = [generator(options.seed, "sample", i).random(len(blank.open)) for i, blank in enumerate(blanks)]
    how = Sampling(temperature=options.temperature or 0.0, top_k=options.top_k, top_p=options.top_p)
    while any(blank.open for blank in blanks):
        pending = [i for i, blank in enumerate(blanks) if blank.open]
        for i, p in zip(pending, _probabilities(model, tokenizer, [blanks[i] for i in pending]), strict=True):
            blank = blanks[i]
            surest = int(p.max(axis=1).argmax())
            with np.errstate(divide="ignore"):
                logits = np.log(p[surest : surest + 1])
            draw = draws[i][len(blank.open) - 1 : len(blank.open)]
            chosen = choose(logits, draw, how)
            blank.ids[blank.open.pop(surest)] = chosen[0]
    return [_write(tokenizer, blank, options.marks) for blank in blanks]


def open_marks(
    model: LanguageModel, tokenizer: Tokenizer, texts: Sequence[str], options: PredictOptions
) -> list[np.ndarray]:
    """For each text float64 [marks, d_vocab]: softmax at every mark, with all marks still open.

    Raises UserError for a text without a mark.
    """
    return _probabilities(model, tokenizer, _blanks(tokenizer, texts, options), ())


def _blanks(tokenizer: Tokenizer, texts: Sequence[str], options: PredictOptions) -> "list[_Blank]":
    n = len(texts)
    return [_read(tokenizer, text, which(i, n), special=options.special) for i, text in enumerate(texts)]


@dataclass
class _Blank:
    """A text with marks, read into ids."""

    pieces: list[str]
    """The text before, between and after marks, as typed."""
    ids: np.ndarray
    """int64 [pos]; [MASK] at marks that are still open."""
    marks: list[int]
    """Positions of all marks, increasing."""
    open: list[int]
    """Positions of marks that are still to fill, increasing."""


def _read(tokenizer: Tokenizer, text: str, which_text: str = "", *, special: bool = False) -> _Blank:
    pieces = text.split(MARK)
    if len(pieces) == 1:
        raise UserError(
            f"there is no {MARK} in {text!r}{which_text}; type {MARK} where a word is to be filled in, as in"
            f" 'the {MARK} sat'"
        )
    before, after = tokenizer.around
    ids: list[int] = before.tolist()
    marks: list[int] = []
    for number, piece in enumerate(pieces):
        before_mark = number < len(pieces) - 1
        strip = before_mark and tokenizer.kind not in _SPACE_IS_A_TOKEN
        ids += np.asarray(tokenizer.encode(piece.rstrip(" ") if strip else piece, special=special)).tolist()
        if before_mark:
            marks.append(len(ids))
            ids.append(tokenizer.special[MARK])
    ids += after.tolist()
    return _Blank(pieces, np.asarray(ids, dtype=np.int64), marks, list(marks))


def _write(tokenizer: Tokenizer, blank: _Blank, around: tuple[str, str]) -> str:
    """The text as typed, with what fills each mark in its place, between two strings; marks side by side are spelled
    together.
    """
    text, first = blank.pieces[0], 0
    for number, place in enumerate(blank.marks):
        piece = blank.pieces[number + 1]
        if piece == "" and number + 1 < len(blank.marks):
            continue
        stands = _joined(tokenizer, text, blank.ids[: blank.marks[first]], blank.ids[blank.marks[first] : place + 1])
        word = stands[len(text) :] if stands.startswith(text) else stands[len(text.rstrip(" ")) :]
        space = word[: len(word) - len(word.lstrip(" "))]
        text = stands[: len(stands) - len(word)] + space + around[0] + word[len(space) :] + around[1] + piece
        first = number + 1
    return text


def _joined(tokenizer: Tokenizer, text: str, before: np.ndarray, new: np.ndarray) -> str:
    """`text`, whose ids are `before`, with the tokens `new` behind it."""
    if tokenizer.kind in _SPACE_IS_DROPPED:  # the spaces that were typed stand, except before the end of a word
        glued = tokenizer.token(int(new[0])).startswith("##")
        word = tokenizer.decode(new)
        return text.rstrip(" ") + word.removeprefix("##") if glued else text + word
    without, whole = tokenizer.decode(before), tokenizer.decode(np.concatenate([before, new]))
    word = whole[len(without) :] if whole.startswith(without) else tokenizer.decode(new)
    if tokenizer.kind in _SPACE_IS_A_TOKEN:
        return text + word
    text = text.rstrip(" ")
    return text + (word if text else word.lstrip(" "))


@torch.inference_mode()
def _probabilities(
    model: LanguageModel, tokenizer: Tokenizer, blanks: Sequence[_Blank], banned: Sequence[int] | None = None
) -> list[np.ndarray]:
    """softmax at every open mark: one float64 [open marks, d_vocab] per text; `banned` tokens (special ones) have 0."""
    n_ctx, banned = model.config.sizes.n_ctx, sorted(tokenizer.special_ids) if banned is None else banned
    asked = [_windows(blank, n_ctx) for blank in blanks]
    flat = [(window, places) for windows in asked for window, places in windows]
    order = sorted(range(len(flat)), key=lambda i: len(flat[i][0]))
    rows: list[np.ndarray] = [np.empty(0)] * len(flat)
    for first in range(0, len(order), _TEXTS_AT_ONCE):
        chunk = order[first : first + _TEXTS_AT_ONCE]
        logits = _logits_at(model, tokenizer, [flat[i] for i in chunk])
        logits[:, list(banned)] = -np.inf
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        ends = np.cumsum([len(flat[i][1]) for i in chunk])
        for i, part in zip(chunk, np.split(p, ends[:-1]), strict=True):
            rows[i] = part
    parts = iter(rows)
    return [np.concatenate([next(parts) for _ in windows]) for windows in asked]


def _windows(blank: _Blank, n_ctx: int) -> list[tuple[np.ndarray, list[int]]]:
    """(ids int64 [pos <= n_ctx], positions in them of the marks to ask for): the whole text, or a window a mark."""
    n = len(blank.ids)
    if n <= n_ctx:
        return [(blank.ids, blank.open)]
    starts = [min(max(0, place - n_ctx // 2), n - n_ctx) for place in blank.open]
    return [(blank.ids[s : s + n_ctx], [place - s]) for s, place in zip(starts, blank.open, strict=True)]


def _logits_at(model: LanguageModel, tokenizer: Tokenizer, asked: Sequence[tuple[np.ndarray, list[int]]]) -> np.ndarray:
    """Logits float64 [all places in order, d_vocab] of texts that go through the model together, padded."""
    device = next(model.parameters()).device
    inputs, real = filled([ids for ids, _ in asked], tokenizer.special["[PAD]"])
    width = inputs.shape[1]
    places = torch.tensor([row * width + place for row, (_, all_) in enumerate(asked) for place in all_], device=device)
    mask = None if real.all() else torch.from_numpy(real).to(device)
    h = model.hidden(torch.from_numpy(inputs).to(device), mask=mask).flatten(0, 1)
    return model.unembed(F.embedding(places, h)).double().cpu().numpy()
