"""Attention and its backward pass in NumPy, with a switch for each typical mistake.

A student's numbers that equal those with one switch on (or two) have that mistake. Switches are the keys of
mistakes.toml, which holds a sentence for each; what follows a colon is another spelling of the same mistake. NaN marks
what a mistake leaves undefined, such as values that are not projected where the widths differ.
"""

import math
from collections.abc import Set
from dataclasses import dataclass

import numpy as np

Array = np.ndarray
RIGHT: frozenset[str] = frozenset()
GRADIENTS = ("x_bar", "W_Q_bar", "W_K_bar", "W_V_bar", "W_O_bar")
"""What `attention_backward` returns, in order."""
PATHS = ("q", "k", "v", "q k", "q v", "k v")
"""What x_bar may come through, where it should come through all three."""


@dataclass(frozen=True)
class Case:
    """One call: x [b, n, d]; W_Q, W_K, W_V [d, h e]; W_O [h e, d]; the gradient of the output, out_bar [b, n, d]."""

    x: Array
    W_Q: Array
    W_K: Array
    W_V: Array
    W_O: Array
    out_bar: Array
    n_heads: int
    causal: bool


def case(seed: int, b: int, n: int, d: int, h: int, e: int, causal: bool, size: float = 0.7) -> Case:
    """Random numbers of these sizes."""
    rng = np.random.default_rng(seed)
    x, out_bar = rng.normal(size=(2, b, n, d))
    W_Q, W_K, W_V = size * rng.normal(size=(3, d, h * e))
    return Case(x, W_Q, W_K, W_V, 0.7 * rng.normal(size=(h * e, d)), out_bar, h, causal)


def _split(t: Array, h: int, wrong: Set[str] = RIGHT) -> Array:
    """[b, n, h e] -> [b, h, n, e]."""
    b, n, width = t.shape
    if "interleaved" in wrong:
        return t.reshape(b, n, width // h, h).transpose(0, 3, 1, 2)
    if "split-without-transpose" in wrong:
        return t.reshape(b, h, n, width // h)
    return t.reshape(b, n, h, width // h).transpose(0, 2, 1, 3)


def _merge(t: Array, wrong: Set[str] = RIGHT) -> Array:
    """[b, h, n, e] -> [b, n, h e]."""
    b, h, n, e = t.shape
    if {"interleaved", ":joined"} <= wrong:
        return t.transpose(0, 2, 3, 1).reshape(b, n, h * e)
    if "merge-without-transpose" in wrong or {"split-without-transpose", ":joined"} <= wrong:
        return t.reshape(b, n, h * e)
    return t.transpose(0, 2, 1, 3).reshape(b, n, h * e)


def _T(t: Array) -> Array:
    return t.swapaxes(-1, -2)


def projected(c: Case, wrong: Set[str] = RIGHT) -> tuple[Array, Array, Array]:
    """q, k and v [b, h, n, e] with these mistakes."""
    h = 1 if "one-head" in wrong else c.n_heads
    q, k, v = (_split(c.x @ W, h, wrong) for W in (c.W_Q, c.W_K, c.W_V))
    if "values-not-projected" in wrong:
        v = _split(c.x, h, wrong) if c.W_V.shape[0] == c.W_V.shape[1] else v * np.nan
    v = k if "keys-as-values" in wrong else v
    k = q if "queries-as-keys" in wrong else k
    return (k, q, v) if "scores-transposed" in wrong else (q, k, v)


def _pattern(c: Case, q: Array, k: Array, wrong: Set[str]) -> Array:
    """softmax(q k^T / sqrt(d_head)), masked: [b, h, n, n]."""
    n, e = c.x.shape[1], q.shape[-1]
    by = {"no-scale": 1, "scale-d-model": math.sqrt(c.x.shape[2]), "scale-no-root": e, "scale-multiplied": e**-0.5}
    scores = q @ _T(k) / next((by[key] for key in by if key in wrong), math.sqrt(e))
    if "no-softmax" in wrong:
        return np.where(_seen(c, n, wrong), scores, 0.0)
    late = "mask-after-softmax" in wrong
    if not late:
        hidden = 0.0 if "mask-zero" in wrong else -1e9 if {":filled", ":added"} & wrong else -np.inf
        low = scores + hidden if ":added" in wrong else hidden
        scores = np.where(_seen(c, n, wrong), scores, low)
    axes = {"softmax-queries": -2, "softmax-heads": 1, "softmax-all": (-2, -1)}
    axis = next((axes[key] for key in axes if key in wrong), -1)
    pattern = np.exp(scores) if "no-sum" in wrong else np.exp(scores - scores.max(axis, keepdims=True))
    pattern = pattern if "no-sum" in wrong else pattern / pattern.sum(axis, keepdims=True)
    return np.where(_seen(c, n, wrong), pattern, 0.0) if late else pattern


def _seen(c: Case, n: int, wrong: Set[str]) -> Array:
    """Which key (column) each query (row) sees."""
    if "no-mask" in wrong or not (c.causal or "mask-always" in wrong):
        return np.ones((n, n), bool)
    seen = np.tri(n, k=1 if "mask-next" in wrong else -1 if "mask-diagonal" in wrong else 0, dtype=bool)
    return seen.T if "mask-transposed" in wrong else seen


def attention(c: Case, wrong: Set[str] = RIGHT) -> Array:
    """The output [b, n, d] with these mistakes."""
    with np.errstate(all="ignore"):
        q, k, v = projected(c, wrong)
        pattern = _pattern(c, q, k, wrong)
        z = (_T(pattern) if "pattern-transposed" in wrong else pattern) @ v
        square = c.W_O.shape[0] == c.W_O.shape[1]
        if "heads-summed" in wrong:
            out = z.sum(1) @ c.W_O.reshape(z.shape[1], -1, c.W_O.shape[1]).sum(0)
        elif "no-output-matrix" in wrong:
            out = _merge(z, wrong) if square else c.x * np.nan
        else:
            W_O = c.W_O if "output-transposed" not in wrong else c.W_O.T if square else c.W_O * np.nan
            out = _merge(z, wrong) @ W_O
        out = out / c.n_heads if "heads-averaged" in wrong else out
        return out + c.x if "skip-added" in wrong else out


def attention_backward(c: Case, wrong: Set[str] = RIGHT) -> tuple[Array, ...]:
    """The five `GRADIENTS` with these mistakes, of a forward pass that is right."""
    q, k, v = projected(c)
    pattern, e, h = _pattern(c, q, k, RIGHT), q.shape[-1], c.n_heads
    square = c.W_O.shape[0] == c.W_O.shape[1]
    z_bar = c.out_bar @ c.W_O.T
    if "skips-output-matrix" in wrong:
        z_bar = c.out_bar if square else z_bar * np.nan
    z_bar = _split(z_bar, h)
    used = _pattern(c, q, k, {"no-mask"}) if "backward-no-mask" in wrong else pattern
    v_bar = (used if "pattern-not-transposed" in wrong else _T(used)) @ z_bar
    pattern_bar = z_bar @ _T(v)
    sums = (pattern_bar * used).sum(-2 if "jacobian-queries" in wrong else -1, keepdims=True)
    scores_bar = used * (pattern_bar - (0 if "jacobian-sum" in wrong else sums))
    if "no-jacobian" in wrong:
        scores_bar = np.where(_seen(c, c.x.shape[1], {"no-mask"} if ":open" in wrong else RIGHT), pattern_bar, 0.0)
    scores_bar = scores_bar if "backward-no-scale" in wrong else scores_bar / math.sqrt(e)
    q_bar = _merge(scores_bar @ k)
    k_bar = _merge((scores_bar if "scores-not-transposed" in wrong else _T(scores_bar)) @ q)
    v_bar = _merge(v_bar)
    bars, z = {"q": (q_bar, c.W_Q), "k": (k_bar, c.W_K), "v": (v_bar, c.W_V)}, _merge(pattern @ v)
    through = next((paths for paths in PATHS if f"only-through {paths}" in wrong), "q k v").split()
    x_bar = sum((bars[name][0] @ bars[name][1].T for name in through), start=np.zeros_like(c.x))
    x_bar = x_bar + c.out_bar if "backward-skip-added" in wrong else x_bar
    from_q = k_bar if "gradients-swapped" in wrong else q_bar
    from_k = q_bar if wrong & {"gradients-swapped", "key-gradient-from-q"} else k_bar
    found = [np.einsum("bnd,bnm->dm", c.x, bar) for bar in (from_q, from_k, v_bar)]
    found.append(np.einsum("bnm,bnd->md", z, c.out_bar))
    if "gradients-averaged" in wrong:
        found = [one / len(c.x) for one in found]
    if "gradients-transposed" in wrong:
        found = [one.T if square else one * np.nan for one in found]
    return x_bar, *found
