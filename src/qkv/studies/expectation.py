"""What a study expects of an effect, stated as data before the first training, so that it can be judged.

One of: above a value, below a value, within a distance of a value, less than another effect, more than another effect.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from qkv.errors import ConfigError
from qkv.jsontypes import JsonObject


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
