"""When to look: pure functions of the step alone, so that a resumed run looks where the first did.

Dense at first, where everything happens at once, then every 8 updates, then at most 64 times per doubling: 62 looks in
300 updates, 150 in 1,000, 295 in 5,000. Nothing here knows how long a run will be; with `--minutes` nobody does.
"""

__all__ = ["interval", "is_by_head", "is_by_row", "is_recorded", "is_spectral"]


def interval(step: int, *, finest: int = 1, regular: int = 8, per_doubling: int = 64) -> int:
    """The distance between looks around `step`: a power of two that grows with it.

    Log-spaced (8 per doubling) from `finest` up to `regular`, `regular` until that is `per_doubling` looks per
    doubling, log-spaced after that.
    """
    octave = 1 << max(step, 1).bit_length() - 1  # the largest power of two not above step
    early = max(finest, octave // 8)
    return max(min(early, regular), octave // per_doubling)


def is_recorded(step: int) -> bool:
    """Whether norms, gradients, updates and drifts are taken at `step`."""
    return step % interval(step) == 0


def is_by_head(step: int) -> bool:
    """Whether spectra of heads and circuits are taken (level `full`): powers of two, every 16 updates, then fewer."""
    return _is_power(step) or step % interval(step, finest=16, regular=16) == 0


def is_spectral(step: int) -> bool:
    """Whether spectra of whole matrices are taken (level `full`): powers of two, every 64 updates, then fewer."""
    return _is_power(step) or step % interval(step, finest=64, regular=64) == 0


def is_by_row(step: int) -> bool:
    """Whether every row of W_E and W_U is measured: at powers of two (and at the end, which only the end knows)."""
    return _is_power(step)


def _is_power(step: int) -> bool:
    return step & (step - 1) == 0
