"""How contextual the vectors of each layer are, each number beside what it would be without meaning anything.

Cosines alone mislead: where all vectors of a layer share a direction, any two are alike. So each similarity stands
beside its baseline in the same layer (Ethayarajh 2019, arXiv 1909.00512):

    random pairs      mean cosine of two vectors of different tokens: all pairs, not a sample
    self-similarity   mean over tokens of the mean cosine between their occurrences; its baseline is random pairs
    in a window       mean over windows of the mean of cos(mean of the window, vector); baseline: as many vectors drawn
                      from everywhere, since the mean of few vectors is near each of them
    explained         mean over tokens of s_1^2 / sum s_i^2 of their occurrences (how far one static vector could stand
                      for all of them); baseline: as many occurrences drawn from everywhere
    isotropy          min Z(c) / max Z(c), Z(c) = sum exp(v c) over the eigenvectors c of V^T V, both signs, vectors
                      scaled to mean length 1 (Mu and Viswanath 2018, arXiv 1702.01417); 1 is isotropic

The probe asks whether a layer can still name the token: a linear classifier (ridge regression onto one-hot labels,
closed form) trained on the first half of the windows, scored on the second, over the most frequent tokens. Its control
trains the same probe on labels dealt out anew: what it gets without looking. The control task of Hewitt and Liang 2019
(arXiv 1909.03368), a random label for each token, is for token identity the task itself with other names, so it can
control nothing here; the floor that matters is the same model before training, where positions and attention already
mix tokens.

All are of this parametrisation (a change of basis that is no rotation alters cosines), except the probe's accuracy,
which no invertible linear map alters but for the ridge. Refuses: comparing coordinates across runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from qkv.inspection.contextual import Contextual
from qkv.randomness import generator

MOST_CLASSES = 100
"""Tokens that the probe tells apart, the most frequent ones."""
FEWEST = 8
"""Occurrences that a token needs, in each half, to be one of them."""
RIDGE = 1e-2
"""Of the mean variance of a component."""
DRAWS = 5
"""Random assortments that a baseline is the mean of."""


@dataclass(frozen=True, kw_only=True)
class LayerMeasures:
    """One layer; None where the texts hold too little to say."""

    layer: str
    n_vectors: int
    random_pairs: float | None
    self_similarity: float | None
    in_window: float | None
    in_window_random: float | None
    explained: float | None
    explained_random: float | None
    isotropy: float | None
    probe: float | None
    """Accuracy, 0 to 1."""
    probe_control: float | None
    n_classes: int
    """Tokens that the probe tells apart."""
    n_largest: float | None
    """Share of the commonest of them among what is scored: what always answering it would get."""


def layer_measures(texts: Sequence[Contextual]) -> list[LayerMeasures]:
    """Every measure of every layer, over the vectors of these texts (windows, sentences)."""
    ids = np.concatenate([text.ids for text in texts])
    window = np.repeat(np.arange(len(texts)), [len(text.ids) for text in texts])
    half = window >= len(texts) // 2
    classes = _classes(ids, half)
    measured = []
    for i, layer in enumerate(texts[0].layers):
        vectors = np.concatenate([text.vectors[i] for text in texts]).astype(np.float64)
        unit = _unit(vectors)
        scored = _probed(vectors, ids, half, classes)
        measured.append(
            LayerMeasures(
                layer=layer,
                n_vectors=len(vectors),
                random_pairs=random_pairs(unit, ids),
                self_similarity=self_similarity(unit, ids),
                in_window=in_groups(vectors, window),
                in_window_random=dealt(in_groups, vectors, window, "window"),
                explained=explained(vectors, ids),
                explained_random=dealt(explained, vectors, ids, "explained"),
                isotropy=isotropy(vectors),
                probe=scored[0],
                probe_control=scored[1],
                n_classes=len(classes),
                n_largest=scored[2],
            )
        )
    return measured


def random_pairs(unit: np.ndarray, ids: np.ndarray) -> float | None:
    """Mean cosine over all pairs of vectors [n, d_model] of length 1 whose ids [n] differ; None where there is none."""
    sums = _sums(unit, ids)
    counts = np.unique(ids, return_counts=True)[1].astype(np.float64)
    pairs = len(ids) ** 2 - (counts**2).sum()
    total = unit.sum(0)
    return float((total @ total - (sums**2).sum()) / pairs) if pairs else None


def self_similarity(unit: np.ndarray, ids: np.ndarray) -> float | None:
    """Mean over ids that occur twice or more of the mean cosine between their vectors [n, d_model] of length 1."""
    counts = np.unique(ids, return_counts=True)[1].astype(np.float64)
    squares, own = (_sums(unit, ids) ** 2).sum(1), _sums((unit**2).sum(1, keepdims=True), ids)[:, 0]
    often = counts > 1
    means = (squares[often] - own[often]) / (counts[often] ** 2 - counts[often])
    return float(means.mean()) if often.any() else None


def isotropy(vectors: np.ndarray) -> float | None:
    """min Z(c) / max Z(c) of vectors [n, d_model] scaled to mean length 1; 0 to 1, None where all are 0."""
    size = np.linalg.norm(vectors, axis=1).mean()
    if not size:
        return None
    scaled = vectors / size
    directions = np.linalg.eigh(scaled.T @ scaled)[1]
    along = scaled @ directions
    z = np.concatenate([np.exp(along).sum(0), np.exp(-along).sum(0)])
    return float(z.min() / z.max())


def probe_accuracy(
    train: np.ndarray, train_labels: np.ndarray, test: np.ndarray, test_labels: np.ndarray, n_classes: int
) -> float:
    """Share of test [m, d_model] whose label (0 .. n_classes - 1) a ridge regression of one-hot labels on train names.

    Components are centred on the training part; the ridge is `RIDGE` times their mean variance times the sample size.
    """
    mean = train.mean(0)
    x, y = train - mean, np.eye(n_classes)[train_labels]
    gram = x.T @ x
    ridge = RIDGE * np.trace(gram) / len(gram)
    weights = np.linalg.solve(gram + (ridge or 1.0) * np.eye(len(gram)), x.T @ (y - y.mean(0)))
    answers = ((test - mean) @ weights + y.mean(0)).argmax(1)
    return float((answers == test_labels).mean())


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-300)


def _sums(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The sum of the rows of each group, in order of the group's number: [n_groups, d]."""
    order = np.argsort(groups, kind="stable")
    starts = np.unique(groups[order], return_index=True)[1]
    return np.add.reduceat(values[order], starts, axis=0)


def in_groups(vectors: np.ndarray, groups: np.ndarray) -> float | None:
    """Mean over groups of two or more of the mean of cos(mean of the group, vector)."""
    counts = np.unique(groups, return_counts=True)[1]
    means = _unit(_sums(vectors, groups))
    found = (_sums(_unit(vectors), groups) * means).sum(1) / counts
    return float(found[counts > 1].mean()) if (counts > 1).any() else None


def explained(vectors: np.ndarray, groups: np.ndarray) -> float | None:
    """Mean over groups of two or more of s_1^2 / sum s_i^2 of their vectors."""
    order = np.argsort(groups, kind="stable")
    starts = np.unique(groups[order], return_index=True)[1]
    shares = []
    for part in np.split(vectors[order], starts[1:]):
        if len(part) > 1:
            gram = part @ part.T if len(part) < part.shape[1] else part.T @ part
            whole = np.trace(gram)
            if whole > 0:
                shares.append(np.linalg.eigvalsh(gram)[-1] / whole)
    return float(np.mean(shares)) if shares else None


def dealt(
    measure: Callable[[np.ndarray, np.ndarray], float | None], values: np.ndarray, groups: np.ndarray, name: str
) -> float | None:
    """The mean of a measure over `DRAWS` random dealings of the same group sizes."""
    found = []
    for draw in range(DRAWS):
        value = measure(values, generator("representation", name, draw).permutation(groups))
        if value is None:
            return None
        found.append(value)
    return float(np.mean(found))


def _classes(ids: np.ndarray, half: np.ndarray) -> np.ndarray:
    """The most frequent ids that stand often enough in both halves, int64."""
    known, counts = np.unique(ids, return_counts=True)
    enough = np.array([min((ids[half] == i).sum(), (ids[~half] == i).sum()) >= FEWEST for i in known])
    order = known[enough][np.argsort(-counts[enough], kind="stable")]
    return order[:MOST_CLASSES] if len(order) > 1 else order[:0]


def _probed(
    vectors: np.ndarray, ids: np.ndarray, half: np.ndarray, classes: np.ndarray
) -> tuple[float | None, float | None, float | None]:
    """Accuracy of the probe, of its control, and the share of the commonest class."""
    if not len(classes):
        return None, None, None
    label = {int(i): n for n, i in enumerate(classes)}
    asked = np.isin(ids, classes)
    x, y, test = vectors[asked], np.array([label[int(i)] for i in ids[asked]]), half[asked]
    dealt = generator("representation", "control").permutation(y[~test])
    accuracies = [probe_accuracy(x[~test], labels, x[test], y[test], len(classes)) for labels in (y[~test], dealt)]
    return accuracies[0], accuracies[1], float(np.bincount(y[test]).max() / len(y[test]))
