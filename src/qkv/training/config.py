"""What a training is asked to do: four frozen dataclasses, validated at construction, written to `config.toml`.

Laws that turn a corpus and a machine into these numbers live in `presets` and `recipe`; nothing is decided here.
"""

from dataclasses import dataclass, field
from typing import Literal

from qkv.errors import ConfigError, unknown

KINDS = ("muon", "adamw", "sgd")
"""Of optimizers that are built in."""
MOST_TEACHERS = 100
"""Of a training: their weights are all held while it learns from them."""


def _require(ok: bool, name: str, value: object, expected: str) -> None:
    if not ok:
        raise ConfigError(f"{name} is {value!r}; expected {expected}")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How gradients become updates. Raises ConfigError for a value out of range."""

    kind: str = "muon"
    """muon: Muon for hidden matrices with AdamW for the rest; adamw or sgd: AdamW or SGD for all; or `module:Class`, an
    optimizer of your own. Another kind than the preset's comes with settings of its own for all that follow."""
    lr: float = 3e-3
    """Peak learning rate of AdamW or SGD; under Muon that of everything but the hidden matrices."""
    muon_lr: float = 0.02
    """Peak learning rate of the hidden matrices under Muon; before the factor sqrt(max(1, d_out / d_in))."""
    embed_factor: float = 1.0
    """Rate of the tables and projections that enter the stack (W_E, W_pos), as a multiple of `lr`."""
    beta1: float = 0.9
    """AdamW's decay of the first moment."""
    beta2: float = 0.95
    """AdamW's decay of the second moment."""
    eps: float = 1e-8
    """Added to AdamW's denominator."""
    weight_decay: float = 0.0
    """Decoupled decay of 2-D matrices, times the learning rate; never of biases, gains and scalars."""
    momentum: float = 0.95
    """Momentum of Muon (Nesterov) and SGD (classical; 0 is plain SGD)."""
    clip: float = 1.0
    """Largest global norm of the gradient, scaled down beyond it; 0 is off."""

    @property
    def is_own(self) -> bool:
        """Whether it is a class of one's own (`training.optimizers`)."""
        return ":" in self.kind

    def __post_init__(self) -> None:
        if not self.is_own and self.kind not in KINDS:
            said = unknown("value for training.optimizer.kind", self.kind, KINDS)
            raise ConfigError(f"{said} An optimizer of your own is module:Class")
        for name in ("lr", "muon_lr", "embed_factor", "eps"):
            value = getattr(self, name)
            _require(0 < value < float("inf"), f"optimizer.{name}", value, "a number above 0")
        for name in ("beta1", "beta2", "momentum"):
            value = getattr(self, name)
            _require(0 <= value < 1, f"optimizer.{name}", value, "a number from 0 up to but not 1")
        for name in ("weight_decay", "clip"):
            value = getattr(self, name)
            _require(0 <= value < float("inf"), f"optimizer.{name}", value, "0 or more")


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """How the rate moves: linear warm-up, plateau, decay. Raises ConfigError for a value out of range."""

    steps: int = 0
    """The horizon in updates; 0 means that the loop measures one from `minutes`."""
    most_steps: int = 0
    """The largest horizon that the loop may measure: more updates would only learn the data by heart; 0 is no limit."""
    warmup_steps: int = 0
    """Updates over which the rate climbs linearly to its peak."""
    decay: Literal["linear", "cosine"] = "linear"
    """How the rate falls to the floor: on a line, or as half a cosine (Loshchilov and Hutter 2017, arXiv 1608.03983),
    which begins where the warm-up ends unless a `decay_share` is set."""
    decay_share: float = 0.4
    """The last share of the horizon, over which the rate falls linearly to the floor; 1 decays from the start."""
    floor: float = 0.0
    """The rate at the horizon as a share of the peak."""
    continues: int = 0
    """Updates that another run made, by its own schedule, before this one goes on with it; `--extend` says so."""

    def __post_init__(self) -> None:
        _require(self.steps >= 0, "schedule.steps", self.steps, "0 or more")
        _require(self.most_steps >= 0, "schedule.most_steps", self.most_steps, "0 or more")
        _require(self.warmup_steps >= 0, "schedule.warmup_steps", self.warmup_steps, "0 or more")
        _require(0 <= self.decay_share <= 1, "schedule.decay_share", self.decay_share, "a share from 0 to 1")
        _require(0 <= self.floor <= 1, "schedule.floor", self.floor, "a share from 0 to 1")
        _require(0 <= self.continues <= self.steps, "schedule.continues", self.continues, "0 to schedule.steps")


@dataclass(frozen=True, kw_only=True)
class TeachingConfig:
    """Trainings of the same task by other seeds that come first. Raises ConfigError for a value out of range."""

    teachers: int = 0
    """How many there are, of whose mean answers the run learns instead of the labels; 0 learns the labels."""
    teacher_dropout: float = 0.5
    """Dropout of the teachers, who learn the labels; that of the run is `model.layout.dropout`."""
    teacher_embed_factor: float = 1.0
    """Rate of the teachers' tables that enter the stack; that of the run is `training.optimizer.embed_factor`."""
    joined: float = 0.5
    """Share of the run's training texts that are read with another text behind them, where n_ctx holds both."""

    def __post_init__(self) -> None:
        teachers = self.teachers
        _require(0 <= teachers <= MOST_TEACHERS, "teaching.teachers", teachers, f"0 (no teaching) to {MOST_TEACHERS}")
        dropout = self.teacher_dropout
        _require(0 <= dropout < 1, "teaching.teacher_dropout", dropout, "a share from 0 up to but not 1")
        factor = self.teacher_embed_factor
        _require(0 < factor < float("inf"), "teaching.teacher_embed_factor", factor, "a number above 0")
        _require(0 <= self.joined <= 1, "teaching.joined", self.joined, "a share from 0 to 1")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """One training: how much, how often it is checked, when it ends. Raises ConfigError for a value out of range."""

    batch_size: int = 32
    """Windows (examples) per update, all micro-batches together."""
    accumulate: int = 1
    """Micro-batches an update is computed in; changes memory, not meaning."""
    eval_every: int = 0
    """Updates between two validations; 0 is the law of `training.validation`."""
    patience: int = 0
    """Validations without a new best before the run ends early; 0 is never."""
    until_loss: float = 0.0
    """End once the loss of the full validation split is at or below this many nats per target; 0 is no target."""
    minutes: float = 0.0
    """Wall time of the whole command that the horizon is measured to fill; 0 is no such budget."""
    on_spike: Literal["stop", "rollback", "ignore"] = "stop"
    """When the loss jumps up and stays there: stop, go back and skip those batches, or only write it down."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """How gradients become updates."""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """How the learning rate moves."""
    teaching: TeachingConfig = field(default_factory=TeachingConfig)
    """Whether other trainings come first, whose answers are learned."""

    def __post_init__(self) -> None:
        _require(self.batch_size >= 1, "training.batch_size", self.batch_size, "1 or more")
        n, most = self.accumulate, self.batch_size
        _require(1 <= n <= most, "training.accumulate", n, f"1 to the batch size of {most}")
        _require(self.eval_every >= 0, "training.eval_every", self.eval_every, "0 or more")
        _require(self.patience >= 0, "training.patience", self.patience, "0 or more")
        _require(0 <= self.until_loss < float("inf"), "training.until_loss", self.until_loss, "0 or more nats")
        _require(0 <= self.minutes < float("inf"), "training.minutes", self.minutes, "0 or more minutes")
