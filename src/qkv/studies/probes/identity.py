"""Whether a layer's vectors still say which token they stand for, and where they say it of tokens that were hidden.

By a linear probe (`inspection.probes.discriminant`), and by the nearest row of W_E, which takes no probe at all. Random
labels for the types of tokens (the control task of Hewitt and Liang 2019, arXiv 1909.03368) are for identity the task
itself under other names, so its accuracy is the same by construction (a test holds that); what the probe could get
without looking is that of labels dealt out anew, and what attention mixes before any learning is the untrained model's.
"""

import numpy as np

from qkv.inspection.probes.discriminant import FEWEST, common_labels, dealt_parts, told
from qkv.studies.engine.training_log import Finished
from qkv.studies.probes.occurrences import Occurrences, occurrences

_MOST_TOKENS = 8192
_HIDDEN, _DRAWS = 0.3, 2
"""Share of tokens that show [MASK], as in training, and how often others are drawn."""


def identity(finished: Finished) -> dict[str, float]:
    """By layer i: `identity i`, `chance i` and `nearest i` in points of 100, `information i` in nats; and `entropy`.

    `nearest` is the share of vectors whose nearest row of W_E, by cosine, is that of their own token (Brunner et al.
    2020, arXiv 1908.04211, without a map between); among as many rows as d_vocab.
    """
    seen = occurrences(finished, _MOST_TOKENS)
    found = _told(finished, seen, "")
    rows = finished.rows / np.maximum(np.linalg.norm(finished.rows, axis=1, keepdims=True), 1e-30)
    for i, vectors in enumerate(seen.vectors):
        found[f"nearest {i}"] = 100 * float(((vectors @ rows.T).argmax(1) == seen.ids).mean())
    return found


def hidden_identity(finished: Finished) -> dict[str, float]:
    """The same by the probe, at positions that show [MASK], of the tokens that stand there: `hidden identity i`, ..."""
    return _told(finished, occurrences(finished, _MOST_TOKENS, hide=_HIDDEN, draws=_DRAWS), "hidden ")


def _told(finished: Finished, seen: Occurrences, prefix: str) -> dict[str, float]:
    parts = dealt_parts(seen.windows)
    classes = common_labels(seen.ids, parts)
    if not len(classes):
        raise finished.too_small(
            f"fewer than two tokens stand {FEWEST} times in every part of its validation text, so no probe can be"
            " fitted"
        )
    found: dict[str, float] = {f"{prefix}classes": float(len(classes))}
    for i, vectors in enumerate(seen.vectors):
        probe = told(vectors, seen.ids, parts, classes)
        found[f"{prefix}identity {i}"] = 100 * probe.accuracy
        found[f"{prefix}chance {i}"] = 100 * probe.by_chance
        found[f"{prefix}information {i}"] = probe.information
        found[f"{prefix}entropy"] = probe.entropy
    return found
