"""What counting words reaches on the same labelled texts, so that an accuracy can be called good or bad.

The commonest class of the training part; and logistic regression on TF-IDF of words and pairs of words (Salton and
Buckley 1988), by scikit-learn, the extra `study`. A classifier that does not beat them has learned less than that.
"""

from dataclasses import dataclass

import numpy as np

from qkv.data.examples import Examples, Labelled
from qkv.installing import install
from qkv.randomness import generator

__all__ = ["LabelledBaselines", "labelled_baselines"]

MOST_TEXTS = 200_000
"""Training texts that are counted at most, drawn from the part; of a class that has none among them the first."""
WORDS = r"\w+(?:'\w+)?|[^\w\s]"
"""What counts as a word: letters and digits, or one mark."""
STRENGTH = 4.0
"""C of the regression: the inverse of its penalty."""


@dataclass(frozen=True, kw_only=True)
class LabelledBaselines:
    """Accuracies, 0..1, and nats per text on the validation part; None where scikit-learn is not installed."""

    majority: float
    majority_nats: float
    tfidf: float | None
    tfidf_nats: float | None
    note: str


def labelled_baselines(data: Examples) -> LabelledBaselines:
    """Count, fit and score; a few seconds for 100,000 short texts. A pure function of the data, fit for a thread."""
    counts = np.bincount(data.train.classes, minlength=len(data.classes))
    shares = np.maximum(counts, 0.5) / np.maximum(counts, 0.5).sum()
    found = _tfidf(data.train, data.val, len(data.classes))
    sampled = f"; TF-IDF counted {MOST_TEXTS:,} of {len(data.train):,} texts" if len(data.train) > MOST_TEXTS else ""
    missing = f"TF-IDF + logistic regression needs scikit-learn; type: {install('study')}"
    return LabelledBaselines(
        majority=float((data.val.classes == counts.argmax()).mean()),
        majority_nats=float(-np.log(shares[data.val.classes]).mean()),
        tfidf=None if found is None else found[0],
        tfidf_nats=None if found is None else found[1],
        note=missing if found is None else sampled.lstrip("; "),
    )


def _tfidf(train: Labelled, val: Labelled, n_classes: int) -> tuple[float, float] | None:
    """(accuracy, nats per text); None where scikit-learn is not installed."""
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
    except ImportError:
        return None
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=WORDS)
    chosen = _sample(train.classes)
    features = words.fit_transform([train.texts[i] for i in chosen.tolist()])
    model = LogisticRegression(C=STRENGTH, max_iter=300).fit(features, train.classes[chosen])
    asked = words.transform(val.texts)
    log_shares = np.full((len(val), n_classes), np.log(1e-9))
    log_shares[:, model.classes_] = np.maximum(model.predict_log_proba(asked), np.log(1e-9))
    nats = -log_shares[np.arange(len(val)), val.classes]
    return float((log_shares.argmax(1) == val.classes).mean()), float(nats.mean())


def _sample(classes: np.ndarray) -> np.ndarray:
    """Which texts are counted, int64, rising; not every n-th, since classes may alternate from row to row."""
    n = len(classes)
    if n <= MOST_TEXTS:
        return np.arange(n)
    drawn = generator("labelled baselines").permutation(n)[:MOST_TEXTS]
    _, firsts = np.unique(classes, return_index=True)
    missing = ~np.isin(classes[firsts], classes[drawn])
    return np.sort(np.concatenate([drawn, firsts[missing]]))
