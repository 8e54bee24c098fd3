"""Less than two minutes: how much of a text is worth reading, and how large a model its validation allows.

Laws of sizes and minutes, without a clock, so that the same command gives the same training everywhere. What they rest
on is in benchmarks/laws.md; from two minutes on they have no effect.
"""

__all__ = ["BRIEF_SECONDS", "bytes_worth_reading", "size_validated_in_time"]

BRIEF_SECONDS = 120.0
"""A wall-time budget below this is brief: reading, validation and baselines are a good part of it."""

_READ_A_MINUTE = 8_000_000
"""Bytes that are worth cutting into tokens for a minute of training: three times what it can be trained on."""

_CUT_A_MINUTE = 20_000_000
"""Bytes that are cut into tokens in a small part of a minute, however many it can be trained on."""

_READ_AT_LEAST = 2_100_000
"""Bytes that are read however short the time: all of the default text."""

_SMALLER = ((128, 4), (128, 2), (96, 2), (64, 2), (64, 1))
"""d_model and layers for a time so short that a validation counts."""

_VALIDATED = 0.165
"""Share of such a time that the validation may take."""

_A_SECOND = 100_000_000_000
"""Multiplications that a second is good for where a law has to guess: two cores make half to three times as many."""


def bytes_worth_reading(minutes: float, times: float = 1.0) -> int:
    """Bytes of a training text that are read at most for `minutes` of wall time; 0 is all of it.

    `times`: as many positions are trained on in a time as two cores do.
    """
    if not 0 < 60 * minutes < BRIEF_SECONDS:
        return 0
    return max(_READ_AT_LEAST, round(min(times * _READ_A_MINUTE, _CUT_A_MINUTE) * minutes))


def size_validated_in_time(
    d_model: int, n_layers: int, minutes: float, val_tokens: int, d_vocab: int
) -> tuple[int, int]:
    """(d_model, n_layers) as given, or the largest smaller ones whose validation takes a sixth of a brief time.

    A position that is scored costs as much as 12 n_layers d_model (d_model + 160) + d_vocab (d_model + 100)
    multiplications: the second terms are what is no product.
    """
    if not 0 < 60 * minutes < BRIEF_SECONDS:
        return d_model, n_layers
    smaller = [(d, n) for d, n in _SMALLER if d <= d_model and n <= n_layers]
    for d, n in ((d_model, n_layers), *smaller):
        cost = 12 * n * d * (d + 160) + d_vocab * (d + 100)
        if val_tokens * cost <= _VALIDATED * 60 * minutes * _A_SECOND:
            return d, n
    return smaller[-1] if smaller else (d_model, n_layers)
