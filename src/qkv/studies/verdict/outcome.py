"""What became of an expectation that was stated before the first training: met, failed or open."""

from collections.abc import Callable

from qkv.studies.expectation import Expected

OUTCOMES = ("met", "failed", "open")
Bounds = Callable[[float, float], tuple[float, float]]
"""(x, confidence) -> the interval of the effect minus x; a constant has one of no width."""


def outcome(expected: Expected, bounds: Bounds, margin: float) -> str:
    """One of `OUTCOMES`. With less_than or more_than, `bounds` is of the effect minus that other one.

    Above or below x: met where the 95% interval lies wholly on that side of x; failed where it lies wholly on the other
    side, or where the 90% interval lies within the margin of x. Near: met where the 90% interval lies within the
    stated distance, failed where the 95% interval lies wholly outside it. Else open.
    """
    if expected.near is not None and expected.within is not None:
        low, high = bounds(expected.near, 0.95)
        inner_low, inner_high = bounds(expected.near, 0.90)
        if -expected.within <= inner_low and inner_high <= expected.within:
            return "met"
        return "failed" if low > expected.within or high < -expected.within else "open"
    x = expected.above if expected.above is not None else expected.below if expected.below is not None else 0.0
    (low, high), (inner_low, inner_high) = bounds(x, 0.95), bounds(x, 0.90)
    met, against = (low > 0, high < 0) if expected.above is not None or expected.more_than else (high < 0, low > 0)
    if met:
        return "met"
    return "failed" if against or (-margin < inner_low and inner_high < margin) else "open"
