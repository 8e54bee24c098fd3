"""What text to train on and how to cut it into tokens, as settings that fit in `config.toml`."""

from dataclasses import dataclass
from pathlib import Path

from qkv.errors import ConfigError


def whole_source(source: str) -> str:
    """A source as it stays true in any folder: paths made absolute, both of `left:right`; `hf:NAME` as it is.

    `left:right` is a pair where there is no file of that whole name; empty stays empty.
    """
    if not source or source.startswith("hf:"):
        return source
    left, colon, right = source.partition(":")
    if colon and not left and not Path(source).exists():
        return source  # half a pair, which the error names
    if colon and left and right and not Path(source).exists() and (Path(left).exists() or Path(right).exists()):
        return f"{Path(left).absolute()}:{Path(right).absolute()}"
    return str(Path(source).absolute())


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """How images are read and, for training only, changed. Raises ConfigError for a value out of range."""

    size: int = 0
    """Longer side, in pixels, that image files are brought to; 0 means as they are, and at most 64."""
    shift: float = 0.04
    """Most that a training image is moved, as a share of its sides."""
    flip: bool = False
    """Mirror half of the training images left to right; only where a mirror image keeps its label."""
    erase: float = 0.0
    """Share of the training images in which a square is erased."""
    smoothing: float = 0.1
    """Share of a training label that is spread over all classes (Szegedy et al. 2015, arXiv 1512.00567)."""

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ConfigError(f"size is {self.size}; expected 0 (as the files are) or a number of pixels")
        for name, most in (("shift", 0.5), ("erase", 1.0), ("smoothing", 0.99)):
            if not 0 <= getattr(self, name) <= most:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected a share from 0 to {most:g}")


@dataclass(frozen=True, kw_only=True)
class LabelledOptions:
    """How labelled texts are changed, for training only. Raises ConfigError for a value out of range."""

    word_dropout: float = 0.3
    """Share of a training text's tokens that are left out, others in every update; one always stays. With --task tag
    and answer, they are shown as the unknown token."""
    disturbed: float = 0.2
    """Share of the training texts that get a class drawn evenly from all instead of their own."""
    linear: bool = True
    """Whether attention is added to a linear model on n-grams; if so, some training texts are kept to weigh the two."""
    class_weights: str = "none"
    """How much a text counts in training: none (all alike), or balanced (classes alike, whatever their size)."""

    def __post_init__(self) -> None:
        if self.class_weights not in ("none", "balanced"):
            raise ConfigError(f"class_weights is {self.class_weights!r}; expected 'none' or 'balanced'")
        for name in ("word_dropout", "disturbed"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected a share from 0 up to but not 1")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where text comes from and which tokenizer cuts it.

    Raises ConfigError for a vocabulary of fewer than 0 tokens, or fewer than 0 bytes to train on.
    """

    source: str = ""
    """A text file, folder or table (each may be gzipped); empty means the corpus inside the user's own Python."""
    tokenizer: str = ""
    """A kind (char, byte, word, bpe, wordpiece, unigram) or a file or folder that holds one; each task has its own."""
    vocab: int = 0
    """Size of the vocabulary to fit, special tokens included; 0 means that of `tokenizers.tokenizer.vocabulary_law`."""
    val: str = ""
    """A source of its own for validation; empty means the part of `source` that is named for that, or one held out."""
    train_bytes: int = 0
    """Bytes of the training part that are read at most, in pieces spread evenly over it; 0 means all of it."""
    text_column: str = ""
    """The column of a table that holds the text; empty means it is found by name, then by length."""
    label_column: str = ""
    """The column of a table that holds the label, never taken for text; empty means none is named."""
    group_column: str = ""
    """The column of a labeled table whose equal values stay on one side of a split; empty means none."""
    document_end: str = ""
    """A mark in the text, such as <|endoftext|>, at which a document ends; empty means that marks are letters."""
    classes: tuple[str, ...] = ()
    """Labels that are known already, in order; empty means those of the training part."""

    labels: LabelledOptions | None = None
    """How labelled texts are changed; None for others."""
    images: ImageOptions | None = None
    """How images are read and changed; None for text."""
    pixels: tuple[int, ...] = ()
    """Channels, height and width that are known already, which image files are brought to; empty: as in training."""

    def __post_init__(self) -> None:
        if self.vocab < 0:
            raise ConfigError(f"vocab is {self.vocab}; expected 0 (chosen by a law) or the number of tokens to fit")
        if self.train_bytes < 0:
            raise ConfigError(f"train_bytes is {self.train_bytes}; expected 0 (all of the text) or a number of bytes")
