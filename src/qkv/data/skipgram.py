"""Skip-gram with negative sampling (Mikolov et al. 2013, arXiv 1310.4546) by gensim, extra `static`, into a file.

A document of the source is a line of words: runs of letters, digits and apostrophes, in lower case. One thread and a
seed make the vectors the same each time. The file is word2vec text, or binary where its name ends in .bin
or .bin.gz, which `load(...)` and gensim read.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from qkv.data.sources.source import Source
from qkv.errors import ConfigError, MissingExtra, SourceError
from qkv.folder.run_folder import check_place
from qkv.installing import install

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_SENTENCE = 1000
"""Words that are handed on at a time."""


@dataclass(frozen=True, kw_only=True)
class SkipGram:
    """How vectors are trained. Raises ConfigError for a number below 1."""

    width: int = 100
    """Numbers in a vector."""
    window: int = 5
    """Words to each side that a word is to predict, at most."""
    negative: int = 5
    """Random words to be distinguished from each true one."""
    least_count: int = 5
    """Words that are rarer get no vector."""
    epochs: int = 5
    """How often the text is read."""
    seed: int = 1
    """Names the starting values and draws."""

    def __post_init__(self) -> None:
        for name in ("width", "window", "negative", "least_count", "epochs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected 1 or more")


class _Sentences:
    """The words of a source, again at each reading."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __iter__(self) -> Iterator[list[str]]:
        for text in self._source.documents():
            words = [word.lower() for word in _WORD.findall(text)]
            for first in range(0, len(words), _SENTENCE):
                yield words[first : first + _SENTENCE]


def train_vectors(source: Source, out: Path, options: SkipGram) -> int:
    """Train on a source and write `out`; returns how many words have a vector.

    Raises MissingExtra without gensim, SourceError where no word is frequent enough or `out` is there already,
    UserError where the folder that it goes into is not.
    """
    check_place(out)
    try:
        from gensim.models import Word2Vec  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtra(f"training word vectors needs another library; type: {install('static')}") from None
    if out.exists():
        raise SourceError(f"{str(out)!r} is there already; give another --out, or remove it")
    model = Word2Vec(
        sg=1,
        hs=0,
        vector_size=options.width,
        window=options.window,
        negative=options.negative,
        min_count=options.least_count,
        epochs=options.epochs,
        seed=options.seed,
        workers=1,
    )
    sentences = _Sentences(source)
    model.build_vocab(sentences)
    if len(model.wv) < 2:
        raise SourceError(
            f"{source.name!r} has {len(model.wv)} words that occur {options.least_count} times; give more text, or a"
            f" smaller --least-count"
        )
    model.train(sentences, total_examples=model.corpus_count, epochs=options.epochs)
    model.wv.save_word2vec_format(str(out), binary=out.name.removesuffix(".gz").endswith(".bin"))
    return len(model.wv)
