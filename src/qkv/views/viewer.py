"""A run opened to be looked at: its model at any kept step, with changes if asked, and texts as its tokenizer reads.

Weights are read from the folder and never from a trainer, so a run can be looked at while it trains; a change is made
on a copy in memory only. A few models are kept, the last used. Everything may be called from several threads.
"""

import copy
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.errors import RunFolderError, UserError
from qkv.inspection.stored_run import StoredRun
from qkv.models.matrices import Catalogue
from qkv.models.zoo import MODELS
from qkv.recipe import RunConfig, opened_model, tokenizer_of
from qkv.tasks import find_task
from qkv.tasks.image import one_image, position_names
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.words import many

LONGEST_TEXT = 20_000
"""Characters of a text that is looked at."""

KEPT_MODELS = 3


@dataclass(frozen=True, eq=False)
class Words:
    """A text (or image) as a model reads it."""

    ids: Tensor
    """int64 [1, pos]; of an image its pixels, as the model takes them."""
    tokens: tuple[str, ...]
    n_all: int
    """Tokens of the whole text, those that were cut included."""


class Viewer:
    """The models of one run folder, or of its reader.

    `n_steps` is the step of its final weights, where neither a checkpoint nor the manifest says it.

    Raises UserError for a folder that is no run.
    """

    def __init__(self, run: Path | StoredRun, n_steps: int | None = None) -> None:
        self._files, self._n_steps = StoredRun.of(run).folder, n_steps
        self.folder = self._files.path
        self.config = RunConfig.read(self._files.config)
        self.turn = threading.RLock()
        self._kept_models = lru_cache(maxsize=KEPT_MODELS)(self._read)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The run's own."""
        return tokenizer_of(self._files, self.config)

    @property
    def causal(self) -> bool:
        """Whether a token sees only what stands before it."""
        return bool(getattr(MODELS[self.config.model.kind], "causal", False))  # a pair's source is seen whole

    @property
    def marks(self) -> bool:
        """Whether special tokens such as [MASK] may be spelled in a text."""
        return find_task(self.config.task).marks

    def steps(self) -> list[int]:
        """Steps whose weights were kept, in order."""
        return list(self._kept())

    def _kept(self) -> dict[int, Path]:
        """Step -> file of weights, in order: the checkpoints, and of a finished run its model, the last step's."""
        found = self._files.weights(self._n_steps)
        if not found and self._files.is_finished and self._files.model.is_file():  # imported, and never trained
            found = {self._n_steps or 0: self._files.model}
        return found

    def last_step(self) -> int:
        """The step of the newest weights."""
        return max(self.steps(), default=self._n_steps or 0)

    def nearest(self, step: int | None) -> int:
        """The last kept step that is not after `step`; without one, the last."""
        steps = self.steps()
        return max((s for s in steps if step is None or s <= step), default=min(steps, default=0))

    def file(self, step: int | None = None) -> tuple[Path, int]:
        """The weights of `model(step)`, and when they were written: after a rollback a step has others."""
        path = self._kept().get(self.nearest(step)) or self._files.model
        return path, path.stat().st_mtime_ns if path.is_file() else 0

    def model(self, step: int | None = None, changes: Sequence[str] = ()) -> Any:
        """The model with the weights of the last kept step up to `step`, then changed; in evaluation mode.

        Raises ChangeError or AddressError for a change that does not fit, RunFolderError where no weights are there.
        """
        return self._opened(step, changes)[0]

    def changed(self, step: int | None, changes: Sequence[str]) -> tuple[str, ...]:
        """A sentence for each change of `model(step, changes)`: which matrices, and who shares them."""
        return self._opened(step, changes)[1]

    def _opened(self, step: int | None, changes: Sequence[str]) -> tuple[Any, tuple[str, ...]]:
        with self.turn:
            return self._kept_models(*self.file(step), tuple(changes))

    def reader(self, step: int | None = None, changes: Sequence[str] = ()) -> Any:
        """The part of `model(step, changes)` that reads a text by itself: all of it, or its encoder.

        Raises ConfigError for a model of which only the matrices are here.
        """
        return self.model(step, changes).reader

    @property
    def encodes(self) -> bool:
        """Whether a text is read by an encoder, apart from what is written."""
        return self.config.model.kind == "EncoderDecoderLM"

    @property
    def has_code(self) -> bool:
        """Whether its model can be run: of one that another program trained, only the matrices may be here."""
        return self.config.watched != "names"

    @property
    def reads_images(self) -> bool:
        """Whether its model reads images and no texts."""
        return find_task(self.config.task).reads == "images"

    @property
    def _vocabulary(self) -> Mapping[str, int] | None:
        there = self._files.tokenizer.is_file()
        return self.tokenizer.readable if there and not self.reads_images else None

    def image(self, path: Path) -> Words:
        """An image file as its model reads it, patches for tokens. Raises UserError for what is no image."""
        pixels, names = one_image(path, self.config.model)
        return Words(pixels, tuple(names), len(names))

    def pixels(self, pixels: np.ndarray) -> Words:
        """An image, uint8 [channels, height, width], likewise."""
        names = position_names(self.config.model)
        return Words(torch.from_numpy(np.array(pixels))[None], tuple(names), len(names))

    def catalogue(self, step: int | None = None, changes: Sequence[str] = ()) -> Catalogue:
        """Every matrix of `model(step, changes)` by address."""
        return Catalogue(self.model(step, changes), self._vocabulary)

    def _read(self, path: Path, _written: int, changes: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
        if not path.is_file():
            raise RunFolderError(f"{self.folder} holds no weights yet; wait for its first checkpoint")
        return opened_model(self.config, path, self._vocabulary, changes)

    def words(self, text: str, longest: int) -> Words:
        """The first `longest` tokens of a text, no more than the model reads at once.

        Raises UserError for a text of more than `LONGEST_TEXT` characters or of fewer than two tokens, and of a run
        that reads images.
        """
        if self.reads_images:
            how = "qkv report RUN --text picture.png shows where its heads look on an image"
            raise UserError(f"{self.folder} reads images and no text; {how}")
        if len(text) > LONGEST_TEXT:
            raise UserError(f"the text has {len(text):,} characters; expected at most {LONGEST_TEXT:,}: shorten it")
        ids = self.tokenizer.encode_whole(text, special=self.marks)
        if len(ids) < 2:
            raise UserError(f"the text has {many(len(ids), 'token')}; expected at least 2: type a longer one")
        kept = ids[: min(longest, self.config.model.sizes.n_ctx)]
        tokens = tuple(self.tokenizer.token(int(i)) for i in kept)
        return Words(torch.as_tensor(kept, dtype=torch.int64)[None], tokens, len(ids))

    def as_read(self, words: Words) -> Tokenizer:
        """The tokenizer as one to which any text is these words: for what cuts a text itself and knows no marks."""
        read = copy.copy(self.tokenizer)
        read.framed = False  # what belongs around a text is among its words
        read.encode = lambda text, special=False: words.ids[0].numpy()
        return read
