"""When to look: pure functions of the step and of settings that are in `config.toml`, never of the clock.

So a resumed run looks where the first did. Each kind of look has a regular interval; dense at first, where everything
happens at once, then regular, then at most 16 times per doubling: at 8 that is 61 looks in 320 updates, 89 in 1,000,
125 in 5,000, with that at the end. Nothing here knows how long a run will be; with `--minutes` nobody does.
"""

from dataclasses import dataclass, fields

from qkv.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class WatchConfig:
    """Updates between two looks of each kind, once regular; 0 is never. A kind that is taken is taken at step 0 and at
    the end, however long the run.

    Raises ConfigError for an interval that is not 0 or a power of two.
    """

    matrices: int = 8
    """Norms, gradients, updates and drifts of every matrix and head."""
    circuits: int = 128
    """Ranks of every head; norms, drifts and symmetry of its circuits QK and OV."""
    attention: int = 256
    """What every head attends to, on a fixed probe text."""
    head_spectra: int = 1024
    """Singular values, rotations and angles of every head and circuit."""
    matrix_spectra: int = 0
    """Singular values, ranks and rotations of every whole matrix: dear where d_model is large."""
    per_doubling: int = 16
    """At most so many looks of a kind between a step and its double: intervals grow with the step."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), field.name == "per_doubling"
            if value < least or value & (value - 1):
                expected = "a power of two" if least else "0 or a power of two"
                raise ConfigError(f"watching.{field.name} is {value}; expected {expected}, such as 16")

    def is_due(self, kind: str, step: int) -> bool:
        """Whether a look of that kind is taken at `step`; `rows` (token tables) at powers of two."""
        is_power = is_by_row(step)
        every = getattr(self, kind) if kind != "rows" else max(self.matrices, 1)
        if not every or step == 0 or kind == "rows":
            return bool(every) and is_power
        fine = every <= FINE
        regular = interval(step, finest=1 if fine else every, regular=every, per_doubling=self.per_doubling)
        first = step >= 8 if every < SPARSE else step >= 16 and step.bit_length() % 2 == 1
        return (is_power and (fine or first)) or step % regular == 0

    def wants(self, step: int) -> bool:
        """Whether any look is taken at `step`."""
        return self.is_due("rows", step) or any(self.is_due(kind, step) for kind in KINDS)


KINDS = ("matrices", "circuits", "attention", "head_spectra", "matrix_spectra")
"""Kinds of looks that have an interval."""

FINE = 8
"""Up to this interval the first looks are log-spaced, eight per doubling; above it, powers of two from 8 on."""

SPARSE = 256
"""From this interval on the first looks are powers of four from 16 on."""

LEVELS = {
    "off": None,
    "light": WatchConfig(),
    "full": WatchConfig(matrices=8, circuits=16, attention=16, head_spectra=16, matrix_spectra=1024, per_doubling=32),
}
"""What `--watch` names; None measures nothing."""


def watch_word(watch: str) -> str:
    """`off`, `light`, `full`, or a percentage in its one spelling: `2%`.

    Raises ConfigError for anything else.
    """
    if watch in LEVELS:
        return watch
    share = share_of(watch)
    if share is None:
        raise ConfigError(f"watch is {watch!r}; expected off, light, full, or a share of the time such as 2%")
    return f"{share:g}%"


def share_of(watch: str) -> float | None:
    """The percentage in `2%` or `2`, above 0 and up to 100; None where it is none."""
    try:
        percent = float(watch.removesuffix("%"))
    except ValueError:
        return None
    return percent if 0 < percent <= 100 else None


def is_by_row(step: int) -> bool:
    """Whether every row of W_E and W_U is measured: at step 0 and powers of two."""
    return step & (step - 1) == 0


def interval(step: int, *, finest: int = 1, regular: int = 8, per_doubling: int = 16) -> int:
    """The distance between looks around `step`: a power of two that grows with it.

    Log-spaced (8 per doubling) from `finest` up to `regular`, `regular` until that is `per_doubling` looks per
    doubling, log-spaced after that.
    """
    octave = 1 << max(step, 1).bit_length() - 1  # the largest power of two not above step
    early = max(finest, octave // 8)
    return max(min(early, regular), octave // per_doubling)
