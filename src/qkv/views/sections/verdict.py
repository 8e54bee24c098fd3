"""One line on how good a run is: its loss among the baselines, in words that claim no more than the numbers."""

from qkv.views.payloads import Baseline, LossSection
from qkv.words import listed, many

__all__ = ["verdict"]


LEVEL = 0.005
"""Nats within which a loss and a baseline are called level."""

_WORDS = {
    "unigram": "counts of single tokens",
    "bigram": "counts of pairs",
    "ngram": "the best n-gram",
    "xz": "the compressor xz",
}


def verdict(loss: LossSection | None, what: str, steps: int | None, metric: str = "", among: str = "") -> str:
    """The line under a report's title.

    `what` is what the model predicts, in words such as "the next word of text"; `metric` what its task is judged by,
    such as "accuracy 0.84", and `among` where that stands among the baselines; without it they are named with nats.
    """
    trained = f"After {many(steps, 'update')}" if steps else "Before its first update"
    if loss is None or loss.best is None:
        return f"{trained} there is no validation loss to judge this run by."
    size = f"{loss.best:.3f} nats"
    if loss.best_bits_per_byte is not None:
        size += f" ({loss.best_bits_per_byte:.2f} bits per byte)"
    text = f"{trained} this model predicts {what} it has never seen at {size}"
    if metric:
        return f"{text}, with {metric}{': ' if among else ''}{among}."
    lines = [line for line in loss.baselines if line.name != "uniform"]
    if not lines:
        return f"{text}."
    return f"{text}: {_among(loss.best, lines)}."


def _among(loss: float, lines: list[Baseline]) -> str:
    """Where a loss stands among the baselines: the nearest that it beats, what it equals, what still beats it."""
    beaten = sorted((line for line in lines if line.nats > loss + LEVEL), key=lambda line: line.nats)
    level = [line for line in lines if abs(line.nats - loss) <= LEVEL]
    ahead = sorted((line for line in lines if line.nats < loss - LEVEL), key=lambda line: line.nats)
    if len(beaten) == len(lines):
        return f"better than {_names(beaten[:1])}" + (" and every other counting baseline" if len(beaten) > 1 else "")
    parts = [f"level with {_names(level)}"] if level else []
    parts += [f"better than {_names(beaten[:1])}"] if beaten else []
    parts += [f"not as good as {_names(ahead)}"] if ahead else []
    return ", ".join(parts)


def _names(lines: list[Baseline]) -> str:
    return listed([f"{_WORDS.get(line.name, line.label)} ({line.nats:.3f})" for line in lines])
