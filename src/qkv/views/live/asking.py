"""What a page with Python behind it can ask: one function per question, found by its name in `ASKS`.

A question is JSON from a browser or a notebook, so every field is checked; a mistake is a UserError whose sentence the
page shows. An answer is payloads by name, in a dataclass or a dictionary.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from qkv.errors import UserError, unknown
from qkv.inspection.attribution import no_sum
from qkv.jsontypes import JsonObject
from qkv.tasks import find_task
from qkv.tasks.text import TextTask
from qkv.views.report.packed import Packed, pack
from qkv.views.sections.attention import name_of, pair_attention, read_pair, read_source, titled, whole
from qkv.views.sections.forward import backward, forward
from qkv.views.sections.heads import AttentionText
from qkv.views.sections.long_text import LONGEST_READ, LongText
from qkv.views.sections.matrices import matrix_of
from qkv.views.sections.patching import patched, written
from qkv.views.sections.vocabulary import in_context, near_token
from qkv.views.viewer import Viewer, Words
from qkv.words import many

LONGEST_WHOLE = 256
"""Tokens up to which a page is given every number of every head; beyond it asks for tiles."""
MOST_CHANGES = 16
MOST_NAMED = 24
"""Likeliest tokens that are named."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked about; fields that a question does not use are ignored."""

    text: str = ""
    """Of a model that writes one text of another `SOURCE => TARGET`, or a source whose target it writes itself."""
    other: str = ""
    """A second text, of as many tokens."""
    step: int | None = None
    """None is the newest weights."""
    changes: tuple[str, ...] = ()
    layer: int = 0
    head: int = 0
    position: int = 0
    top: int = 0
    left: int = 0
    block: int = 1
    token: int = 0
    address: str = ""

    @classmethod
    def read(cls, given: object) -> "Question":
        """From what came over the wire. Raises UserError for another shape or type."""
        if not isinstance(given, Mapping):
            raise UserError("a question is a JSON object")
        names = [field.name for field in dataclasses.fields(cls) if given.get(field.name) is not None]
        values: JsonObject = {name: _checked(name, given[name]) for name in names}
        return cls(**values)


def _checked(name: str, value: object) -> str | int | tuple[str, ...]:
    if name == "changes":
        if not isinstance(value, list) or len(value) > MOST_CHANGES or not all(isinstance(v, str) for v in value):
            raise UserError(f"changes is a list of at most {MOST_CHANGES} texts")
        return tuple(value)
    if name in ("text", "other", "address"):
        if not isinstance(value, str):
            raise UserError(f"{name} is a text")
        return value
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 40:
        raise UserError(f"{name} is a whole number from 0 up; given: {str(value)[:40]!r}")
    return value


class Desk:
    """Answers questions about one run, one at a time."""

    def __init__(self, viewer: Viewer) -> None:
        self.viewer = viewer
        self.long = lru_cache(maxsize=2)(self._long)

    @property
    def can(self) -> tuple[str, ...]:
        """Names of what may be asked of this run."""
        predicts = isinstance(find_task(self.viewer.config.task), TextTask)
        layout = self.viewer.config.model.layout
        scores = layout.mixer == "attention" and layout.plain_scores  # patterns are computed again from q and k
        cannot = (() if predicts else _NEED_PREDICTIONS) + (() if scores else _NEED_ATTENTION)
        cannot += ("written",) if no_sum(layout) else ()
        cannot += _NEED_TEXT if self.viewer.reads_images or not self.viewer.has_code else ()
        return tuple(name for name in ASKS if name not in cannot)

    def answer(self, name: str, given: object) -> Any:
        """The answer. Raises UserError for what cannot be answered, in a sentence for the page."""
        if name not in ASKS:
            raise UserError(unknown("question", name[:40], ASKS))
        question = Question.read(given)
        with self.viewer.turn:
            return ASKS[name](self, question)

    def _long(self, text: str, step: int, changes: tuple[str, ...], _weights: tuple[Path, int]) -> LongText:
        return LongText(self.viewer, _words(self.viewer, text), step, changes)

    def long_text(self, question: Question) -> LongText:
        """The long text that a question is about, its layer and head checked."""
        sizes = self.viewer.config.model.sizes
        if question.layer >= sizes.n_layers or question.head >= sizes.n_heads:
            raise UserError(
                f"there is no L{question.layer}.H{question.head}; this model has {many(sizes.n_layers, 'layer')} of "
                f"{many(sizes.n_heads, 'head')}"
            )
        step = self.viewer.nearest(question.step)
        return self.long(question.text, step, question.changes, self.viewer.file(step))


def _words(viewer: Viewer, text: str) -> Words:
    """A text as far as a page looks at it; of a pair its source."""
    return read_source(viewer, text, LONGEST_READ) if viewer.encodes else viewer.words(text, LONGEST_READ)


def _attention(desk: Desk, question: Question) -> dict[str, tuple[AttentionText, ...]]:
    """Every head on a text, of a pair in all three attentions: all numbers up to 256 tokens, thumbnails of more (of a
    pair, of its source alone).
    """
    viewer = desk.viewer
    words, step = _words(viewer, question.text), viewer.nearest(question.step)
    title = titled(name_of(question.text), words.tokens, words.n_all)
    if len(words.tokens) > LONGEST_WHOLE:
        found = (desk.long(question.text, step, question.changes, viewer.file(step)).overview(title),)
    elif viewer.encodes:
        pair = read_pair(viewer, question.text, LONGEST_WHOLE)
        title = titled(name_of(question.text), pair.source_tokens, pair.n_all)
        found = pair_attention(viewer, pair, title, steps=[step], changes=question.changes)
    else:
        found = (whole(viewer, words, title, steps=[step], changes=question.changes),)
    return {"texts": tuple(dataclasses.replace(text, source=question.text) for text in found)}


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """A text as the model reads it: the one that all sections of a page show."""

    name: str
    source: str
    tokens: tuple[str, ...]
    note: str
    """What is left out of a text that is too long, in a sentence; else empty."""


def _sentence(desk: Desk, question: Question) -> Sentence:
    """The tokens of a text, of a pair those of its source."""
    words, n_ctx = _words(desk.viewer, question.text), desk.viewer.config.model.sizes.n_ctx
    n = len(words.tokens)
    why = f"This model reads {n_ctx:,} at once" if n == n_ctx else "A page shows at most that many"
    note = f"The text has {words.n_all:,} tokens; only the first {n:,} are shown. {why}." if words.n_all > n else ""
    return Sentence(name=name_of(question.text), source=question.text, tokens=words.tokens, note=note)


@dataclass(frozen=True, kw_only=True)
class NextToken:
    """What a model thinks comes after one token of a text (or stands at it, of a masked model)."""

    step: int
    logits: Packed
    """float32 [d_vocab], largest first."""
    tokens: tuple[str, ...]
    """Those of the largest logits."""


def _next(desk: Desk, question: Question) -> NextToken:
    """Every logit at one token."""
    viewer, words = desk.viewer, desk.viewer.words(question.text, LONGEST_READ)
    if question.position >= len(words.tokens):
        raise UserError(f"there is no token {question.position}; the text has {len(words.tokens)}")
    with torch.inference_mode():
        logits = viewer.model(question.step, question.changes)(words.ids)[0, question.position].float()
    ordered = logits.sort(descending=True, stable=True)
    return NextToken(
        step=viewer.nearest(question.step),
        logits=pack(ordered.values.numpy()),
        tokens=tuple(viewer.tokenizer.token(int(i)) for i in ordered.indices[:MOST_NAMED]),
    )


def _tile(desk: Desk, question: Question) -> dict[str, Packed]:
    """Up to 256 x 256 cells of one head's pattern on a long text."""
    n = 1 << 12
    if question.top >= n or question.left >= n or not 1 <= question.block <= 64:
        raise UserError("a tile begins inside the pattern, with blocks of 1 to 64")
    long = desk.long_text(question)
    n = len(long.words.tokens)
    top, left = min(question.top, n - 1), min(question.left, n - 1)
    return {"values": long.tile(question.layer, question.head, top, left, question.block)}


def _line(desk: Desk, question: Question) -> dict[str, Packed]:
    """What one token reads and who reads it, every number."""
    long = desk.long_text(question)
    if question.position >= len(long.words.tokens):
        raise UserError(f"there is no token {question.position}; the text has {len(long.words.tokens)}")
    reads, read_by = long.line(question.layer, question.head, question.position)
    return {"reads": reads, "read_by": read_by}


def _sums(desk: Desk, question: Question) -> dict[str, Packed]:
    """How much attention each token receives in all, and the entropy of each row."""
    received, entropy = desk.long_text(question).sums(question.layer, question.head)
    return {"received": received, "entropy": entropy}


ASKS: dict[str, Callable[[Desk, Question], Any]] = {
    "sentence": _sentence,
    "next": _next,
    "attention": _attention,
    "tile": _tile,
    "line": _line,
    "sums": _sums,
    "matrix": lambda desk, q: matrix_of(desk.viewer, q.address, q.step),
    "forward": lambda desk, q: forward(desk.viewer, q.text, q.step, layers=[q.layer], changes=q.changes),
    "backward": lambda desk, q: backward(desk.viewer, q.text, q.step, q.changes),
    "patch": lambda desk, q: patched(desk.viewer, q.text, q.other, q.step, q.changes),
    "written": lambda desk, q: written(desk.viewer, q.text, q.position, q.step, q.changes),
    "near": lambda desk, q: near_token(desk.viewer, q.text, q.step),
    "context": lambda desk, q: in_context(desk.viewer, q.text, q.position, q.step),
}
"""Name -> what answers it. A new question is one function and one row here."""


_NEED_PREDICTIONS = ("backward", "patch", "written", "next")
_NEED_ATTENTION = ("attention", "tile", "line", "sums")
_NEED_TEXT = (*_NEED_ATTENTION, *_NEED_PREDICTIONS, "forward", "sentence", "near", "context")
