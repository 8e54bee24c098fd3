"""A text as token ids: one long array, in memory or mapped from a file, with the places where documents begin."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


def id_type(d_vocab: int) -> type[np.unsignedinteger]:
    """The smallest unsigned type that holds every id below d_vocab."""
    if d_vocab <= 1 << 8:
        return np.uint8
    return np.uint16 if d_vocab <= 1 << 16 else np.uint32


def n_utf8(texts: Iterable[str]) -> int:
    """Bytes of these texts in UTF-8; half of a surrogate pair is one."""
    return sum(len(text) if text.isascii() else len(text.encode("utf-8", "replace")) for text in texts)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokens:
    """Token ids of one part (training or validation) of a corpus."""

    ids: np.ndarray
    """uint8, uint16 or uint32 [n_tokens]; may be mapped from a file, and is read-only then."""
    offsets: np.ndarray
    """int64 [n_documents + 1]: document i is ids[offsets[i] : offsets[i + 1]], its end token included."""
    n_bytes: int
    """UTF-8 bytes of the original text that these tokens stand for."""
    n_unknown: int = 0
    """Tokens that stand for something outside the vocabulary."""

    def __post_init__(self) -> None:
        assert self.ids.ndim == 1 and self.offsets[0] == 0 and self.offsets[-1] == len(self.ids)
        # A plain array over the same file: np.memmap pays for its class at every slice.
        object.__setattr__(self, "ids", self.ids.view(np.ndarray))

    @classmethod
    def of(
        cls, ids: np.ndarray, lengths: np.ndarray, texts: Iterable[str], d_vocab: int, unknown: int | None
    ) -> "Tokens":
        """Tokens of documents: the ids of all `texts` one after another, and how many each has.

        `unknown` is the token for what is outside the vocabulary of d_vocab, None where nothing is.
        """
        return cls(
            ids=ids.astype(id_type(d_vocab)),
            offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            n_bytes=n_utf8(texts),
            n_unknown=0 if unknown is None else int((ids == unknown).sum()),
        )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def n_documents(self) -> int:
        """How many documents there are; one for a plain text."""
        return len(self.offsets) - 1

    def document(self, i: int) -> np.ndarray:
        """Ids of document i, [n_tokens of it]."""
        return self.ids[self.offsets[i] : self.offsets[i + 1]]
