"""Which words a model of pieces holds to be alike, so that models of other tokenizers can be compared with it.

The words are the same for every tokenizer, since they are counted in the text and not in tokens: the commonest words of
letters alone that stand behind a space. Each gets a vector from the pieces that it is cut into, where it stands there:

    W_E    the mean of the rows of its pieces, those of white space left out: what the table knows of it
    mean   the mean over its occurrences of the vector at its last piece after the last layer, where all of it was read

Cosines are handed on as in `studies.probes.relatedness`, which compares them; they are of this parametrisation of each
model, their agreement between two models of neither. Two words that share a piece share a row, so tables of few pieces
agree by spelling alone: what a model at its start agrees is the null.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from qkv.studies.engine.training_log import Finished
from qkv.studies.probes.occurrences import Occurrences, occurrences
from qkv.studies.probes.relatedness import AGAIN, UNTRAINED, written
from qkv.tokenizers.tokenizer import Tokenizer

_MOST_CHARACTERS = 4_000_000
_MOST_WORDS, _FEWEST_WORDS, _FEWEST = 64, 5, 4
_WORD = re.compile(r"(?<= )[^\W\d_]+(?!\w)")
_ENDS = {"other seed": AGAIN, "none": UNTRAINED}


def word_relatedness(finished: Finished) -> dict[str, float]:
    """`space|training|word|word` -> centred cosine of every two words, and `replicate`; a training by its text's name.

    A word that the tokenizer does not know, or that stands less than four times in the validation text, is left out of
    the space that lacks it. Raises SourceError for a text that holds too few words.
    """
    arm = finished.trial.arm
    words = common_words(finished.corpus.text("train"))
    if len(words) < _FEWEST_WORDS:
        raise finished.too_small(
            f"{len(words)} words of letters stand behind a space in its training text; expected at least"
            f" {_FEWEST_WORDS}"
        )
    name, found = arm.text + _ENDS.get(arm.trainer, ""), {"replicate": float(finished.trial.seed)}
    for space, vectors in (("W_E", _rows(finished, words)), ("mean", _means(finished, words))):
        if len(vectors) > 1:
            found |= written(space, name, list(vectors), np.array(list(vectors.values())))
    return found


def common_words(text: Iterator[str]) -> list[str]:
    """The commonest words of letters alone behind a space in the first millions of letters, by the alphabet."""
    counts, read = Counter(), 0
    for piece in text:
        counts.update(_WORD.findall(piece))
        read += len(piece)
        if read >= _MOST_CHARACTERS:
            break
    return sorted(sorted(counts, key=lambda word: (-counts[word], word))[:_MOST_WORDS])


def pieces_of(word: str, tokenizer: Tokenizer) -> list[int]:
    """Ids of the pieces of a word behind a space, without those of white space; none where it is not known whole."""
    ids = [int(i) for i in tokenizer.encode(f" {word}")]
    if tokenizer.unknown_id in ids:
        return []
    return [i for i in ids if tokenizer.token(i).strip()]


def _rows(finished: Finished, words: Sequence[str]) -> dict[str, np.ndarray]:
    """Word -> the mean of the rows of its pieces."""
    table = finished.rows.astype(np.float64)
    pieces = {word: pieces_of(word, finished.corpus.tokenizer) for word in words}
    return {word: table[ids].mean(0) for word, ids in pieces.items() if ids}


def _means(finished: Finished, words: Sequence[str]) -> dict[str, np.ndarray]:
    """Word -> the mean of its vectors after the last layer, each at its last piece."""
    seen = occurrences(finished, len(finished.corpus.val))
    places = last_pieces(seen, finished.corpus.tokenizer, frozenset(words))
    last = seen.vectors[-1].astype(np.float64)
    return {word: last[places[word]].mean(0) for word in words if len(places.get(word, ())) >= _FEWEST}


def last_pieces(seen: Occurrences, tokenizer: Tokenizer, words: frozenset[str]) -> dict[str, list[int]]:
    """Word -> places in `seen` of the last piece of each of its occurrences that stand whole in a window."""
    read = {int(i): _as_read(int(i), tokenizer) for i in np.unique(seen.ids)}
    found: dict[str, list[int]] = {}
    for window in np.unique(seen.windows):
        places = np.flatnonzero(seen.windows == window)
        texts = [read[int(i)] for i in seen.ids[places]]
        ends = np.cumsum([len(text) for text in texts])
        for match in _WORD.finditer("".join(texts)):
            if match[0] in words and match.end() < ends[-1]:  # what goes on behind the window is not known
                piece = int(np.searchsorted(ends, match.end()))
                found.setdefault(match[0], []).append(int(places[piece]))
    return found


def _as_read(i: int, tokenizer: Tokenizer) -> str:
    """The letters that a piece adds to the text; pieces of WordPiece and words begin with the space that they drop."""
    token = tokenizer.token(i)
    if tokenizer.kind not in ("wordpiece", "word"):
        return token
    goes_on = tokenizer.kind == "wordpiece" and token.startswith("##") and len(token) > 2
    return token[2:] if goes_on else f" {token}"
