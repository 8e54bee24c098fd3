"""What likeness of words says in x, q, k and v, and what of it another basis inside a head takes away.

With any invertible M, (W_Q M)(W_K M^-T)^T = W_Q W_K^T: no score, pattern or output of a model changes, and every cosine
among its queries, and among its keys, does. Rows of W_E pass through a norm as they do in the model, without its gain;
no position is added. float64.
"""

import numpy as np
import torch
from torch import Tensor

from qkv.studies.engine.initial_tables import information_of
from qkv.studies.engine.training_log import Finished
from qkv.studies.probes.analogies import FEWEST_WORDS, GROUPS, grouped
from qkv.studies.probes.likeness import agreement, all_cosines, pair_cosines


def _head(finished: Finished, head: int) -> dict[str, Tensor]:
    """What any row of W_E becomes in a head of the first layer, each [d_vocab, d_head]: q, k, v, and the first two in
    another basis.

    M is the inverse of q^T q: where queries were longest they become shortest.
    """
    table = finished.parts.catalogue.view("W_E").detach().double()
    x = torch.nn.functional.layer_norm(table, table.shape[-1:])  # what the first attention reads of each row
    w_q, w_k, w_v = (finished.parts.catalogue.view(f"L0.H{head}.W_{n}").detach().double() for n in "QKV")
    q = x @ w_q
    lengths, directions = torch.linalg.eigh(q.T @ q)
    lengths = lengths.clamp_min(1e-6 * float(lengths[-1]) or 1.0)  # a direction that no query has may be kept
    other_q, other_k = x @ (w_q @ (directions / lengths)), x @ (w_k @ (directions * lengths))
    return {"q": q, "k": x @ w_k, "v": x @ w_v, "q in another basis": other_q, "k in another basis": other_k}


def change_of_basis(finished: Finished) -> dict[str, float]:
    """What is left of likeness among queries when W_Q and W_K are exchanged for another pair with the same scores.

    Of the first head. `q ~ q` is the rank correlation of cosines between the queries of any two rows of W_E, before and
    after; `scores moved` the largest change of a score, in standard deviations of scores.
    """
    head = _head(finished, 0)
    q, other_q = head["q"], head["q in another basis"]
    scores, other_scores = q @ head["k"].T, other_q @ head["k in another basis"].T
    spread = float(scores.std()) or 1.0
    return {
        "q ~ q": agreement(*(pair_cosines(rows.numpy(), centred=False) for rows in (q, other_q))),
        "scores moved": float((scores - other_scores).abs().max()) / spread,
    }


def triplets(finished: Finished) -> dict[str, float]:
    """Of all triplets such as king, queen, dog (two words of one of our groups, one of another) the share in which the
    two of a group are the more alike, in points of 100, less the 50 that chance gives.

    Likeness is the cosine less the mean vector of the words asked. `triplets x` is of rows of W_E, `triplets counts` of
    rows of mutual information with neighbours (PPMI); `triplets q`, `k`, `v` and `q in another basis` are of what the
    first layer makes of the rows of W_E, means over its heads. `triplets asked` is the share of the words that the
    vocabulary has; where it has fewer than `FEWEST_WORDS` nothing else is given. Any 20 are of two groups at least.
    """
    corpus = finished.corpus
    asked = grouped(corpus.tokenizer)
    found = {"triplets asked": len(asked) / sum(len(words.split()) for words in GROUPS)}
    if len(asked) < FEWEST_WORDS:
        return found
    groups, ids = np.array([group for group, _ in asked]), [i for _, i in asked]
    heads = [_head(finished, head) for head in range(finished.trial.scale.n_heads)]
    spaces = {
        "x": [finished.parts.catalogue.view("W_E").detach()],
        "counts": [torch.from_numpy(information_of(corpus))],
        **{name: [head[name] for head in heads] for name in ("q", "k", "v", "q in another basis")},
    }
    for name, tables in spaces.items():
        right = [rightly(rows[ids].numpy(), groups) for rows in tables]
        found[f"triplets {name}"] = 100 * (float(np.mean(right)) - 0.5)
    return found


def rightly(rows: np.ndarray, groups: np.ndarray) -> float:
    """The share of triplets (a, b, c), a and b of one group and c of another, with a more like b than c; ties half."""
    n, cosines = len(rows), all_cosines(rows)
    right = asked = 0.0
    for a in range(n):
        same = groups == groups[a]
        inside, outside = cosines[a][same & (np.arange(n) != a)], cosines[a][~same]
        difference = inside[:, None] - outside[None, :]
        right += float((difference > 0).sum() + (difference == 0).sum() / 2)
        asked += difference.size
    return right / asked
