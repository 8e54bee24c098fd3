"""One line on how good a run is: its loss among the baselines, in words that claim no more than the numbers."""

from qkv.views.payloads import Baseline, LossRoom

__all__ = ["verdict"]


def verdict(loss: LossRoom | None, unit: str, steps: int | None, *, causal: bool = True) -> str:
    """The line under a report's title.

    `unit` is what one token is. A baseline within 0.005 nats of the loss is said to be level with it.
    """
    trained = f"After {steps:,} updates" if steps else "Before its first update"
    if loss is None or loss.best is None:
        return f"{trained} there is no validation loss to judge this run by."
    what = f"the next {unit}" if causal else f"a hidden {unit}"
    size = f"{loss.best:.3f} nats"
    if loss.best_bits_per_byte is not None:
        size += f" ({loss.best_bits_per_byte:.2f} bits per byte)"
    text = f"{trained} this model predicts {what} of text it has never seen at {size}"
    lines = [line for line in loss.baselines if line.name != "uniform"]
    if not lines:
        return f"{text}."
    return f"{text}: {_among(loss.best, lines)}."


def _among(loss: float, lines: list[Baseline]) -> str:
    """Where a loss stands among the baselines: what it beats, what it equals, what still beats it."""
    beaten = sorted((line for line in lines if line.nats > loss + 0.005), key=lambda line: line.nats)
    level = [line for line in lines if abs(line.nats - loss) <= 0.005]
    ahead = sorted((line for line in lines if line.nats < loss - 0.005), key=lambda line: line.nats)
    parts = []
    if level:
        parts.append(f"level with {_names(level)}")
    if beaten:
        parts.append(f"better than {'all of ' if len(beaten) == len(lines) > 1 else ''}{_names(beaten)}")
    if ahead:
        parts.append(f"not as good as {_names(ahead)}")
    return ", ".join(parts)


def _names(lines: list[Baseline]) -> str:
    said = [f"{_word(line)} ({line.nats:.3f})" for line in lines]
    return said[0] if len(said) == 1 else f"{', '.join(said[:-1])} and {said[-1]}"


def _word(line: Baseline) -> str:
    words = {"unigram": "token counts", "bigram": "counts of pairs", "ngram": f"the {line.label}", "xz": "xz"}
    return words.get(line.name, line.label)
