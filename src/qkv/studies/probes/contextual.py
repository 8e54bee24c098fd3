"""How contextual vectors differ from the rows of W_E, layer by layer, and which analogies either of them answers.

Layer 0 is what enters the first block, layer i what leaves block i. Similarities stand less what vectors of that layer
give without meaning anything (Ethayarajh 2019, arXiv 1909.00512; `qkv.inspection.representation`); likeness of words is
compared by rank correlation over pairs (`qkv.studies.probes.likeness`).
"""

from pathlib import Path

import numpy as np

from qkv.data.vectors import Vectors, read_vectors
from qkv.errors import SourceError
from qkv.folder.run_folder import sha256_of
from qkv.inspection.representation import dealt, explained, in_groups, random_pairs, self_similarity
from qkv.inspection.word_tests import answered
from qkv.studies.engine.initial_tables import information_of
from qkv.studies.engine.training_log import Finished
from qkv.studies.probes.analogies import FEWEST_WORDS, N_QUESTIONS, SECTIONS, grouped
from qkv.studies.probes.basis import rightly
from qkv.studies.probes.likeness import agreement, all_cosines, common_ids, first_components, means, pair_cosines
from qkv.studies.probes.occurrences import Occurrences, occurrences
from qkv.studies.synthetic.streams import given

MOST_TOKENS = 8192
_FEWEST, _MOST_WORDS = 8, 64
_NEIGHBOURS = 10


def contextual(finished: Finished) -> dict[str, float]:
    """By layer i, over the words that occur most:

    `self-similarity i`   mean cosine between occurrences of a word, less `random pairs i`, that of different words
    `in a window i`       mean cosine of a vector with the mean of its window, less that of windows dealt out anew
    `explained i`         share of a word's occurrences that one vector explains, less the same of words dealt out anew
    `mean ~ W_E i`        agreement of likenesses: a word's mean vector, and its row of W_E
    `first ~ W_E i`       the same of its first principal component
    `mean ~ counts i`     the same of its mean vector and its row of mutual information with its neighbours (PPMI)
    `neighbours i`        share of the 10 nearest by the mean vector that are so by W_E, less what chance gives

    and `W_E ~ counts`. Raises SourceError for a text without enough words.
    """
    seen = occurrences(finished, MOST_TOKENS)
    words = common_ids(seen.ids, _FEWEST, _MOST_WORDS)
    if len(words) <= _NEIGHBOURS:
        raise finished.too_small(
            f"{len(words)} words stand {_FEWEST} times or more in its validation text; expected more than {_NEIGHBOURS}"
        )
    table, information = finished.rows[words], information_of(finished.corpus)[words]
    rows, counts = pair_cosines(table), pair_cosines(information, centred=False)
    found = {"W_E ~ counts": agreement(rows, counts)}
    for i in range(len(seen.vectors)):
        middle, first = means(seen, i, words), first_components(seen, i, words)
        alike = pair_cosines(middle)
        found |= _similarities(seen, i, words)
        found[f"mean ~ W_E {i}"] = agreement(alike, rows)
        found[f"first ~ W_E {i}"] = agreement(pair_cosines(first), rows)
        found[f"mean ~ counts {i}"] = agreement(alike, counts)
        found[f"neighbours {i}"] = _same_neighbours(middle, table)
    return found


def _similarities(seen: Occurrences, layer: int, words: np.ndarray) -> dict[str, float]:
    """Those of Ethayarajh 2019, the similarities in windows over all tokens, the rest over `words`."""
    vectors = seen.vectors[layer].astype(np.float64)
    asked = np.isin(seen.ids, words)
    of_words, ids = vectors[asked], seen.ids[asked]
    unit = of_words / np.maximum(np.linalg.norm(of_words, axis=1, keepdims=True), 1e-300)
    by_chance = random_pairs(unit, ids)
    measured = {
        "self-similarity": (self_similarity(unit, ids), by_chance),
        "in a window": (in_groups(vectors, seen.windows), dealt(in_groups, vectors, seen.windows, "window")),
        "explained": (explained(of_words, ids), dealt(explained, of_words, ids, "explained")),
    }
    found = {f"random pairs {layer}": by_chance or 0.0}
    for name, (value, without) in measured.items():
        assert value is not None and without is not None, "there are words enough"
        found[f"{name} {layer}"] = value - without
    return found


def _same_neighbours(some: np.ndarray, others: np.ndarray) -> float:
    """Mean share of the nearest rows [n, d] that two tables have in common, less what chance gives."""
    near = [_nearest(rows) for rows in (some, others)]
    shared = [len(set(a) & set(b)) for a, b in zip(*near, strict=True)]
    return float(np.mean(shared)) / _NEIGHBOURS - _NEIGHBOURS / (len(some) - 1)


def _nearest(rows: np.ndarray) -> np.ndarray:
    """The nearest other rows by centred cosine, int64 [n, _NEIGHBOURS]."""
    cosines = all_cosines(rows)
    np.fill_diagonal(cosines, -np.inf)
    return np.argsort(-cosines, axis=1, kind="stable")[:, :_NEIGHBOURS]


def analogies(finished: Finished) -> dict[str, float]:
    """`analogies asked`: share of our questions that the validation text has words for.

    Of W_E, of mean vectors after the last layer and of rows of PPMI the share answered rightly by 3CosAdd, less chance,
    and less the share that the nearest neighbour of c answers with a and b unheard, in points of 100: `analogies mean`
    and `beyond c mean` (3CosAdd may not answer a, b or c, and so is often right by neighbours alone: Linzen 2016, arXiv
    1606.07736). All are asked among the same words, those that occur. No share is given where no question can be asked.
    """
    seen, tokenizer = occurrences(finished, MOST_TOKENS), finished.corpus.tokenizer
    ids = common_ids(seen.ids, 1, tokenizer.d_vocab)
    words = tuple(tokenizer.token(int(i)) for i in ids)
    tables = {
        "W_E": finished.rows[ids],
        "mean": means(seen, -1, ids),
        "counts": information_of(finished.corpus)[ids],
    }
    found: dict[str, float] = {}
    for name, rows in tables.items():
        found |= _asked(name, Vectors(words=words, values=rows.astype(np.float32)))
    return found


def _asked(name: str, vectors: Vectors) -> dict[str, float]:
    together = answered(vectors, SECTIONS)[-1]
    found = {"analogies asked": together.n_asked / N_QUESTIONS}
    if together.add is not None:
        found[f"analogies {name}"] = 100 * (together.add - together.chance)
        found[f"beyond c {name}"] = 100 * (together.add - _by_neighbour(vectors))
    return found


def published(finished: Finished) -> dict[str, float]:
    """`analogies asked`, `analogies published` and `beyond c published` as of `analogies`, of the word vectors beside
    the text, among those of its words that they have: the control that shows what can be answered. And as of
    `qkv.studies.probes.basis` `triplets published`. The model counts for nothing here.

    Raises SourceError where they are not those of the settings.
    """
    path, tokenizer = Path(given(finished.trial.source).vectors), finished.corpus.tokenizer
    if sha256_of(path) != dict(finished.trial.text.settings)["vectors"]:
        raise SourceError(f"the vectors {path.name!r} have changed since the study began; bring the old ones back")
    vectors = read_vectors(path)
    seen = np.unique(finished.corpus.val.ids[:MOST_TOKENS])
    rows = {word: row for i in seen if (row := vectors.row(word := tokenizer.token(int(i)))) is not None}
    found = _asked("published", Vectors(words=tuple(rows), values=vectors.values[list(rows.values())]))
    told = [(group, row) for group, i in grouped(tokenizer) if (row := vectors.row(tokenizer.token(i))) is not None]
    if len(told) >= FEWEST_WORDS:
        groups, places = (np.array(column) for column in zip(*told, strict=True))
        found["triplets published"] = 100 * (rightly(vectors.values[places], groups) - 0.5)
    return found


def _by_neighbour(vectors: Vectors) -> float:
    """Share of the questions "a is to b as c is to ?" whose answer is the nearest neighbour of c but for a and b."""
    values = vectors.values.astype(np.float64)
    unit = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-30)
    right = []
    for question in (question for questions in SECTIONS.values() for question in questions):
        rows = [vectors.rows.get(word) for word in question]
        if None not in rows:
            a, b, c, d = (int(row) for row in rows if row is not None)
            cosines = unit @ unit[c]
            cosines[[a, b, c]] = -np.inf
            right.append(int(cosines.argmax()) == d)
    return float(np.mean(right))
