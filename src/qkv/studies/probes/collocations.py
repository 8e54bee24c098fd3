"""Pairs of words of a real text in the 2 x 2 {occur together} x {share contexts}, matched in frequency.

What made sentences tell apart by design is told apart here by choice of pairs, from the training text alone:

    occur together    within two places of one another five times or more, and e times as often as chance or more (PPMI
                      of 1 nat); apart: never more often than chance (PPMI of 0)
    share contexts    among the tenth of all pairs with the likest rows of PPMI, the pair's own cells left out
                      (second-order similarity: Schuetze 1998); not: in the lower half

Pairs go into the comparison in fours, one of each cell, whose counts are nearly the same, word by word; those that
occur together have about the same PPMI, and those that share contexts, or do not, about the same second-order
similarity. How well that went stands beside the effects (`log count`, `PPMI`, `second order`). A choice is no
intervention: what else goes with occurring together in a text goes with it here. Likeness is that of
`studies.probes.pairs`, and like it of this parametrisation; contextual vectors are left out, for most of such
words stand too rarely in what is held out. The null is the model at its start.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from qkv.data.corpus import Corpus
from qkv.instruments.tokens import count_tokens
from qkv.studies.engine.initial_tables import information_of, offsets_of, pair_counts
from qkv.studies.engine.training_log import Finished
from qkv.studies.probes.pairs import effects, likenesses, of_pairs
from qkv.studies.synthetic.streams import CELLS, PairCell

FEWEST_FOURS = 20
"""With fewer, nothing is measured."""
_MOST_WORDS, _FEWEST, _FEWEST_TOGETHER = 400, 20, 5
_TOGETHER_NATS, _SHARED, _UNSHARED = 1.0, 0.9, 0.5
_LOG_COUNT, _PPMI, _SECOND = 0.5, 0.5, 0.25
"""The most by which the pairs of a four may differ: ln count of either word, nats, standard deviations."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Fours:
    """Pairs of words, one of each cell in every four."""

    words: np.ndarray
    """int64 [n_words]: ids of the words that pairs were chosen among."""
    pairs: dict[PairCell, np.ndarray]
    """int64 [n_fours, 2]: ids."""
    known: dict[str, np.ndarray]
    """What was known of every two words before a training, [n_words, n_words]: ln counts added, PPMI, second order."""

    def __len__(self) -> int:
        return len(self.pairs[CELLS[0]])


def collocations(finished: Finished) -> dict[str, float]:
    """`fours`: how many there are; where they are enough, `together M` and `shared M` of every likeness M.

    As `probes.pairs.pairs` gives them of made sentences; and the same of what was known of the pairs beforehand.
    """
    fours = chosen(finished.corpus)
    found = {"fours": float(len(fours))}
    if len(fours) < FEWEST_FOURS:
        return found
    places = {cell: torch.from_numpy(pairs) for cell, pairs in fours.pairs.items()}
    for name, likeness in likenesses(finished, torch.from_numpy(fours.words)).items():
        found |= effects(name, {cell: float(of_pairs(likeness, p).mean()) for cell, p in places.items()})
    rows = {int(word): row for row, word in enumerate(fours.words)}
    for name, values in fours.known.items():
        means = {
            cell: float(np.mean([values[rows[int(a)], rows[int(b)]] for a, b in pairs]))
            for cell, pairs in fours.pairs.items()
        }
        found |= effects(name, means)
    return found


@lru_cache(maxsize=4)
def chosen(corpus: Corpus) -> Fours:
    """The pairs of a text, by its training part; the same for every model of it."""
    tokenizer, ids = corpus.tokenizer, corpus.train.ids
    counts, special = count_tokens(ids, tokenizer.d_vocab), set(tokenizer.special.values())
    words = [i for i in np.argsort(-counts, kind="stable") if counts[i] >= _FEWEST and int(i) not in special]
    words = np.array([int(i) for i in words if tokenizer.token(int(i)).isalpha()][:_MOST_WORDS], dtype=np.int64)
    information, among = information_of(corpus), np.ix_(words, words)
    logs = np.log(counts[words])
    known = {
        "log count": logs[:, None] + logs[None],
        "PPMI": information[among],
        "second order": second_order(information, words),
    }
    a, b = np.triu_indices(len(words), 1)
    often = pair_counts(ids, tokenizer.d_vocab, offsets_of(corpus))[among][a, b]
    picked = _matched(known["PPMI"][a, b], known["second order"][a, b], often, logs[a], logs[b])
    pairs = {
        cell: np.stack([words[a[places]], words[b[places]]], axis=1) if places else np.zeros((0, 2), dtype=np.int64)
        for cell, places in picked.items()
    }
    return Fours(words=words, pairs=pairs, known=known)


def second_order(information: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Cosine of the rows of every two words without the columns of the two, float64 [n_words, n_words]."""
    rows = information[words]
    whole, own = rows @ rows.T, information[np.ix_(words, words)]
    itself = np.diag(own)
    dots = whole - itself[:, None] * own.T - own * itself[None]
    squares = np.diag(whole)[:, None] - itself[:, None] ** 2 - own**2
    return dots / np.sqrt(np.maximum(squares * squares.T, 1e-300))


def _matched(
    first: np.ndarray, second: np.ndarray, often: np.ndarray, log_a: np.ndarray, log_b: np.ndarray
) -> dict[PairCell, list[int]]:
    """Cell -> numbers of its pairs, those at one place a four. Each pair is used once.

    The words of a pair are in falling order of count. A four begins with a pair that occurs together and shares no
    contexts, the rarest kind in text.
    """
    bounds = [np.quantile(second, share) for share in (_SHARED, _UNSHARED)] if len(second) else [0.0, 0.0]
    together, apart = (often >= _FEWEST_TOGETHER) & (first >= _TOGETHER_NATS), first == 0
    shared, unshared = second >= bounds[0], second <= bounds[1]
    free = {cell: (together if cell.together else apart) & (shared if cell.shared else unshared) for cell in CELLS}
    counts = ((log_a, _LOG_COUNT), (log_b, _LOG_COUNT))
    spread = _SECOND * float(second.std() if len(second) else 0) or 1.0
    both, alone, alike, neither = CELLS
    found: dict[PairCell, list[int]] = {cell: [] for cell in CELLS}
    for pair in np.flatnonzero(free[alone]):
        one = _nearest(int(pair), free[both], (*counts, (first, _PPMI)))
        other = None if one is None else _nearest(one, free[alike], ((second, spread),), of_pair=(int(pair), counts))
        last = _nearest(int(pair), free[neither], (*counts, (second, spread)))
        if one is None or other is None or last is None:
            continue
        for cell, place in ((both, one), (alone, int(pair)), (alike, other), (neither, last)):
            found[cell].append(place)
            free[cell][place] = False
    return found


Measured = Sequence[tuple[np.ndarray, float]]
"""(values of all pairs, the most by which two may differ)."""


def _nearest(pair: int, free: np.ndarray, near: Measured, of_pair: tuple[int, Measured] | None = None) -> int | None:
    """The free pair that is nearest by the largest of its differences, each in what it may be; None where none is."""
    candidates = np.flatnonzero(free)
    wanted = [(values[candidates] - values[pair], most) for values, most in near]
    if of_pair is not None:
        wanted += [(values[candidates] - values[of_pair[0]], most) for values, most in of_pair[1]]
    off = np.max([np.abs(difference) / most for difference, most in wanted], axis=0, initial=0.0)
    if not len(candidates) or off.min() > 1:
        return None
    return int(candidates[off.argmin()])
