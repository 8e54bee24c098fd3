"""Linear CKA: how alike the vectors of two layers are, up to a rotation and a common scale.

    CKA(X, Y) = HSIC(X, Y) / sqrt(HSIC(X, X) HSIC(Y, Y)),    X [n, p] and Y [n, q] of the same n tokens

(Kornblith et al. 2019, arXiv 1905.00414), with the unbiased estimator of HSIC (Song et al. 2012, JMLR 13; for CKA
Nguyen et al. 2021, arXiv 2010.15327). Their first estimator is biased: with n tokens and p components that are
unrelated it tends to p / (n + p), this one to 0, so it can be slightly below 0. 1 is the same up to rotation and scale.

The interval is a jackknife over 8 groups of texts, since tokens of one text are not independent. Refuses: two models
that cut a text into other tokens, since their vectors are not of the same things.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from qkv.errors import UserError
from qkv.inspection.contextual import Contextual
from qkv.shapes import Float, Float64
from qkv.tasks.evaluation import student_t

MOST = 1024
"""Tokens that are compared, the first ones."""
FEWEST = 16
GROUPS = 8


@dataclass(frozen=True, eq=False)
class Alike:
    """Every layer of one model beside every layer of the other, on the same tokens."""

    layers: tuple[list[str], list[str]]
    """Addresses: `embed`, `L0.resid_post`, ..."""
    value: Float64[np.ndarray, "n_layers n_others"] = field(repr=False)
    """NaN where a layer has one vector for all tokens."""
    low: Float64[np.ndarray, "n_same"] = field(repr=False)
    high: Float64[np.ndarray, "n_same"] = field(repr=False)
    """95% interval of the i-th layer of one beside the i-th of the other; NaN with fewer than 8 texts."""
    n: int
    """Tokens."""

    @property
    def same(self) -> Float64[np.ndarray, "n_same"]:
        """The i-th layer of one beside the i-th of the other."""
        return np.diagonal(self.value).copy()


def cka(x: Float[np.ndarray, "n p"], y: Float[np.ndarray, "n q"], *, debiased: bool = True) -> float:
    """Linear CKA of vectors of the same n > 3 things; NaN where all of one are equal."""
    parts = [_hsic(a, b, debiased) for a, b in ((x, y), (x, x), (y, y))]
    return parts[0] / float(np.sqrt(parts[1] * parts[2])) if parts[1] > 0 and parts[2] > 0 else float("nan")


def _hsic(x: np.ndarray, y: np.ndarray, debiased: bool) -> float:
    """n (n - 3) times the unbiased estimate of HSIC, or (n - 1)^2 times the biased one.

    For centered vectors a row of the Gram matrix sums to 0 and, without its diagonal, to minus that: every sum of the
    estimator follows from |X^T Y|^2 and the lengths of the rows, and no n x n table is made.
    """
    n = len(x)
    x, y = (z.astype(np.float64) - z.mean(0, dtype=np.float64) for z in (x, y))
    whole = float(np.square(x.T @ y).sum())
    if not debiased:
        return whole
    a, b = np.square(x).sum(1), np.square(y).sum(1)
    own = float(a @ b)
    return whole - own + float(a.sum() * b.sum()) / ((n - 1) * (n - 2)) - 2 * own / (n - 2)


def alike(one: Sequence[Contextual], other: Sequence[Contextual]) -> Alike:
    """The vectors of two models, or of two steps of one, on the same texts.

    Raises UserError where they cut the texts into other tokens, or these have fewer than 16.
    """
    for a, b in zip(one, other, strict=True):
        if a.tokens != b.tokens:
            raise UserError(
                f"the two models cut {a.text[:40]!r} into other tokens ({len(a.tokens)} and {len(b.tokens)}), so their"
                " vectors are not of the same things; expected models with the same tokenizer"
            )
    text = np.repeat(np.arange(len(one)), [len(each.ids) for each in one])[:MOST]
    if len(text) < FEWEST:
        raise UserError(f"the texts have {len(text)} tokens; CKA needs at least {FEWEST}: give longer ones, or more")
    xs, ys = ([np.concatenate([each.vectors[i] for each in of], axis=0)[:MOST] for i in range(len(of[0].layers))]
              for of in (one, other))  # fmt: skip
    value = np.array([[cka(x, y) for y in ys] for x in xs])
    n_same, group = min(len(xs), len(ys)), text * GROUPS // (text[-1] + 1)
    low = high = np.full(n_same, np.nan)
    if len(np.unique(group)) == GROUPS:
        without = np.array([[cka(xs[i][group != g], ys[i][group != g]) for i in range(n_same)] for g in range(GROUPS)])
        error = np.sqrt((GROUPS - 1) / GROUPS * np.square(without - without.mean(0)).sum(0))
        reach, middle = student_t(GROUPS - 1) * error, np.diagonal(value)
        low, high = middle - reach, np.minimum(middle + reach, 1.0)
    return Alike((list(one[0].layers), list(other[0].layers)), value, low, high, len(text))
