"""Loss over steps and the lines it is read against."""

import dataclasses

__all__ = ["Baseline", "LossSection"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Baseline:
    """A loss that needs no model, on the same validation tokens."""

    name: str
    label: str
    meaning: str
    nats: float
    bits_per_byte: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossSection:
    """Loss over steps, in nats per token, and the lines it is read against."""

    train_steps: tuple[int, ...]
    train: tuple[float | None, ...]
    val_steps: tuple[int, ...]
    val: tuple[float | None, ...]
    best_step: int | None
    best: float | None
    last: float | None
    baselines: tuple[Baseline, ...] = ()
    bits_per_byte_of_nat: float | None = None
    """Bits per byte of one nat per token on the validation text; None where task or tokenizer have no such number."""
    bits_per_byte_lost: float = 0.0
    """Bits per byte that cost what the tokenizer loses of that text, whatever the loss."""
    best_bits_per_byte: float | None = None
    thinned: str = ""
    """How the training curve was thinned for the page, in words; empty when every recorded step is here."""
    baselines_note: str = ""
    """What the baselines were sampled from, in words; empty when all of the text was used."""
