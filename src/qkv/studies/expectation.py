"""What a study expects of an effect, stated as data before the first training, and what became of it.

One of: above a value, below a value, within a distance of a value, less than another effect, more than another effect.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from qkv.errors import ConfigError
from qkv.jsontypes import JsonObject

OUTCOMES = ("met", "failed", "open")
Bounds = Callable[[float, float], tuple[float, float]]
"""(x, confidence) -> the interval of the effect minus x; a constant has one of no width."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """One prediction. Raises ConfigError for none, for several at once, and for numbers that are not finite."""

    above: float | None = None
    below: float | None = None
    near: float | None = None
    within: float | None = None
    """With `near`: the largest distance that still agrees."""
    less_than: str = ""
    """Name of another effect of the same study."""
    more_than: str = ""

    def __post_init__(self) -> None:
        stated = [self.above, self.below, self.near, self.less_than or None, self.more_than or None]
        numbers = [x for x in (self.above, self.below, self.near, self.within) if x is not None]
        if sum(x is not None for x in stated) != 1 or (self.near is None) != (self.within is None):
            raise ConfigError(
                "an expectation is one of above, below, near with within, less_than, more_than;"
                f" got {self.to_json() or 'none'}"
            )
        if not all(math.isfinite(x) for x in numbers) or (self.within is not None and self.within <= 0):
            raise ConfigError(f"an expectation needs finite numbers, and within above 0; got {self.to_json()}")

    @property
    def other(self) -> str:
        """The effect that it compares with; empty where it states a number."""
        return self.less_than or self.more_than

    def to_json(self) -> JsonObject:
        """The fields that are set."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}

    @classmethod
    def read(cls, value: Mapping[str, object], where: str = "") -> "Expected":
        """An expectation from a table such as `{above = 0.0}`. Raises ConfigError for other keys, types or text."""
        where = f" of {where}" if where else ""
        if not isinstance(value, Mapping) or set(value) - set(cls.__dataclass_fields__):
            raise ConfigError(
                f"expected{where} is {value!r}; write {{ above = 0.0 }}, {{ below = 0.0 }}, {{ near = 1.0, within = 0.1"
                ' }, { less_than = "another effect" } or { more_than = "another effect" }'
            )
        for name, given in value.items():
            is_name = name in ("less_than", "more_than")
            if isinstance(given, bool) or not isinstance(given, str if is_name else int | float):
                raise ConfigError(
                    f"{name} in expected{where} is {given!r}; expected {'a name' if is_name else 'a number'}"
                )
        return cls(**value)  # pyright: ignore[reportArgumentType]

    def outcome(self, bounds: Bounds, margin: float) -> str:
        """One of `OUTCOMES`. With less_than or more_than, `bounds` is of the effect minus that other one.

        Above or below x: met where the 95% interval lies wholly on that side of x; failed where it lies wholly on the
        other side, or where the 90% interval lies within the margin of x. Near: met where the 90% interval lies within
        the stated distance, failed where the 95% interval lies wholly outside it. Else open.
        """
        if self.near is not None and self.within is not None:
            low, high = bounds(self.near, 0.95)
            inner_low, inner_high = bounds(self.near, 0.90)
            if -self.within <= inner_low and inner_high <= self.within:
                return "met"
            return "failed" if low > self.within or high < -self.within else "open"
        x = self.above if self.above is not None else self.below if self.below is not None else 0.0
        (low, high), (inner_low, inner_high) = bounds(x, 0.95), bounds(x, 0.90)
        met, against = (low > 0, high < 0) if self.above is not None or self.more_than else (high < 0, low > 0)
        if met:
            return "met"
        return "failed" if against or (-margin < inner_low and inner_high < margin) else "open"
