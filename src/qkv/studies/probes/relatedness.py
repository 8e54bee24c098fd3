"""Which words a model holds to be alike, written down so that models of other objectives and seeds can be compared.

A probe sees one model. So this one hands on the cosine of every two of the commonest words, and `compared` holds
models of one replicate beside each other once all are there, by rank correlation over the pairs that they share: no
coordinate of one model ever meets a coordinate of another.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations, product

import numpy as np

from qkv.studies.engine.training_log import Finished
from qkv.studies.probes.likeness import agreement, common_ids, means, pair_cosines
from qkv.studies.probes.occurrences import occurrences

AGAIN = " again"
"""What the name of the same training on another seed ends in."""
UNTRAINED = " untrained"
"""What the name of a model at its start ends in; there is no second one of it."""
SPACES = ("W_E", "W_U", "mean")
"""Rows of W_E, columns of W_U where there is one, and the mean vector of each word after the last layer."""
_MOST_TOKENS, _FEWEST, _MOST_WORDS = 8192, 4, 40
_FEWEST_WORDS = 5
_BETWEEN = "|"

Kept = Mapping[str, Mapping[str, float]]
"""Training (`causal`, `causal again`, ...) -> "space|word|word" -> cosine."""


def relatedness(finished: Finished) -> dict[str, float]:
    """`space|training|word|word` -> centred cosine of every two of the commonest words; and `replicate`.

    Words are of letters alone. Raises SourceError for a text that holds too few.
    """
    seen, token = occurrences(finished, _MOST_TOKENS), finished.corpus.tokenizer.token
    ids = [i for i in common_ids(seen.ids, _FEWEST, len(seen.ids)) if token(int(i)).isalpha()][:_MOST_WORDS]
    if len(ids) < _FEWEST_WORDS:
        raise finished.too_small(
            f"{len(ids)} words of letters stand {_FEWEST} times or more in its validation text; expected at least"
            f" {_FEWEST_WORDS}"
        )
    ids.sort(key=lambda i: token(int(i)))
    words, rows = [token(int(i)) for i in ids], np.array(ids)
    catalogue = finished.parts.catalogue
    spaces = {"W_E": finished.rows[rows], "mean": means(seen, -1, rows)}
    if "W_U" in catalogue.addresses:
        spaces["W_U"] = catalogue.view("W_U").detach().numpy().T[rows]
    arm = finished.trial.arm
    name = arm.task + (AGAIN if arm.trainer == "other seed" else "")
    found = {"replicate": float(finished.trial.seed)}
    for space, vectors in spaces.items():
        found |= written(space, name, words, vectors)
    return found


def written(space: str, name: str, words: Sequence[str], vectors: np.ndarray) -> dict[str, float]:
    """`space|training|word|word` -> centred cosine of every two of `words`, in the order of the alphabet."""
    pairs = zip(combinations(words, 2), pair_cosines(vectors), strict=True)
    return {_BETWEEN.join((space, name, *pair)): round(float(cosine), 6) for pair, cosine in pairs}


def compared(rows: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Of each row what all rows of its replicate say together: `space: some ~ other`, rank correlations, -1 to 1.

    Some and other are kinds of training: tasks, or texts cut by this and that tokenizer. `causal ~ masked` is the mean
    of (causal, masked again) and (causal again, masked), `causal ~ causal` that of (causal, causal again): always two
    seeds. `ceiling causal ~ masked` is the most that noise between seeds lets two tasks agree, were they to mean the
    same: the geometric mean of what each agrees with itself, 0 where one of them does not (Spearman 1904, on
    correlations of noisy measures). A model at its start, `some untrained`, is held beside `other again` alone. What
    was not trained is not compared.
    """
    replicates: dict[float, dict[str, dict[str, float]]] = {}
    for row in rows:
        for key, cosine in row.items():
            if key.count(_BETWEEN) == 3:
                space, name, pair = key.split(_BETWEEN, 2)
                replicates.setdefault(row["replicate"], {}).setdefault(name, {})[f"{space}{_BETWEEN}{pair}"] = cosine
    said = {replicate: _agreements(kept) for replicate, kept in replicates.items()}
    return [said.get(row.get("replicate", -1.0), {}) for row in rows]


def _agreements(kept: Kept) -> dict[str, float]:
    tasks = [name for name in kept if not name.endswith(AGAIN)]
    found = {}
    for space in SPACES:
        for some, other in product(tasks, repeat=2):
            sides = {(a, f"{b}{AGAIN}") for a, b in ((some, other), (other, some)) if not b.endswith(UNTRAINED)}
            values = [_agreement(kept[a], kept[b], space) for a, b in sorted(sides) if a in kept and b in kept]
            known = [value for value in values if value is not None]
            if sides and len(known) == len(sides):
                found[f"{space}: {some} ~ {other}"] = float(np.mean(known))
        for some, other in product(tasks, repeat=2):
            own = [found.get(f"{space}: {task} ~ {task}") for task in (some, other)]
            if None not in own:
                found[f"{space}: ceiling {some} ~ {other}"] = float(np.prod([max(0.0, r or 0.0) for r in own]) ** 0.5)
    return found


def _agreement(some: Mapping[str, float], others: Mapping[str, float], space: str) -> float | None:
    """Over the pairs that both have, in one space; None where they have none."""
    pairs = sorted(key for key in some.keys() & others.keys() if key.partition(_BETWEEN)[0] == space)
    return agreement(*(np.array([side[pair] for pair in pairs]) for side in (some, others))) if pairs else None
