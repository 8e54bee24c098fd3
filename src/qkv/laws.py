"""Laws of size: how much there is to train on and a budget in, a model's size and its batch out.

There is no clock in them, so that the same command gives the same model everywhere. Which law a task has is said by
`Task.size_law`; what they were measured on stands in docs/benchmarks/laws.md and docs/decisions.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from qkv.data.config import LabelledOptions
from qkv.training.config import TeachingConfig

WIDE = 192
"""From this d_model on, heads are twice as wide."""
DEFAULT_MINUTES = 4.8
"""Wall time of a training for which no budget was given."""
PASSES = 4
"""Passes over a text beyond which a model of some million parameters learns it by heart, unless values are dropped."""
MOST_PASSES = 16
"""Passes over a text beyond which nothing keeps such a model from that."""
SHORT = 400
"""A horizon of fewer updates than this is short for Muon's usual momentum."""


_WORTH_COMPILING = 300.0
"""Seconds of updates on a GPU."""


class Pace(NamedTuple):
    """What a machine does in a time, as far as a law has to guess it: there is no clock in one."""

    a_minute: int
    """Positions of four layers of 192 that a minute is good for, in batches of the law's size."""
    an_update: float
    """Seconds that an update takes, however few its positions."""
    a_position: float
    """Seconds of a position of such a model beside that."""
    batch: int
    """Times as large a batch as the law's own is done as soon."""


TWO_CORES = Pace(600_000, 0.01, 1e-4, 1)
"""Two cores make half to twice as much."""

A_CARD = Pace(100_000_000, 0.005, 2.5e-7, 8)
"""A GPU that plays updates again: 10 ms for 16,384 positions of five layers of 192 (benchmarks/2026-11-26-h100.md)."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How much training was asked for; 0 where it was not."""

    steps: int = 0
    minutes: float = 0.0
    until_loss: float = 0.0
    body_layers: int = 0
    """Layers of the run whose weights it goes on from; 0 where it begins anew."""
    batch_size: int = 0
    """Examples a step, where they were chosen."""
    teachers: int | None = None
    """Trainings that come first, where their number was chosen."""
    val_tokens: int = 0
    """Tokens that a validation scores; 0 where that plays no part."""
    d_vocab: int = 0
    """Tokens that each of them is chosen from."""
    pace: Pace = TWO_CORES
    """Of the machine."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A model's size and the tokens it sees a step."""

    d_model: int
    n_layers: int
    n_ctx: int
    batch_tokens: int = 0
    """Positions a step, cut into windows of n_ctx; 0 where `batch_size` says how many examples."""
    batch_size: int = 0
    """Examples a step, whatever their length."""
    accumulate: int = 1
    """Portions that a step is computed in."""
    steps: int = 0
    """The horizon that the law plans for a target loss; 0 where the budget decides."""
    most_steps: int = 0
    """The largest horizon that wall time may be turned into: beyond it data are learned by heart; 0 is no limit."""
    teaching: TeachingConfig = TeachingConfig()
    """Trainings by other seeds that come first."""
    dropout: float = 0.0
    """Dropout for data that will be seen many times."""
    note: str = ""
    """A sentence for people, where the law could not do what the budget asked for."""
    optimizer: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Kind of optimizer -> settings that the law knows better than a preset: {"muon": {"weight_decay": 0.1}}."""

    def examples(self, n_ctx: int) -> int:
        """Examples a step, each of n_ctx positions where the law counts positions."""
        return self.batch_size or max(1, self.batch_tokens // n_ctx)

    def of_batches(self, n: int, n_ctx: int) -> "Scale":
        """The same for batches of `n` examples: as many passes, or, where a loss is to be reached by larger ones than
        the law's own, as much learned (`_LEARNED`), but some hundred updates.

        The law's own batch may be cut into more parts than this one has examples. A note tells of the law's own updates
        and is left out where there are others.
        """
        times = n / self.examples(n_ctx)
        share = times ** -(self._power if times > 1 else 1.0)
        steps, most = (
            max(min(planned, SHORT // 2), round(planned * share)) for planned in (self.steps, self.most_steps)
        )
        note = self.note if steps == self.steps else ""
        parts = max(1, min(self.accumulate, n))
        return replace(self, batch_size=n, accumulate=parts, steps=steps, most_steps=most, note=note)

    def of_larger_batches(self, times: int, n_ctx: int) -> "Scale":
        """The same for batches `times` as large as the law's own, or as large as leaves `SHORT` updates."""
        planned = self.steps or self.most_steps
        fit = (planned / SHORT) ** (1 / self._power) if planned else times
        return self.of_batches(round(max(1.0, min(times, fit)) * self.examples(n_ctx)), n_ctx)

    @property
    def _power(self) -> float:
        """Of a batch's size, by which updates are fewer: more passes than a time budget's are learned by heart."""
        return _LEARNED if self.steps else 1.0


_LEARNED = 2 / 3
"""Batches b times as large get b^-2/3 times the updates; measured at 8, by one target and two seeds
(benchmarks/laws.md)."""

_USUAL = {"muon": {"lr": 0.03, "muon_lr": 0.01, "momentum": 0.85}}
"""Better than the rates of a preset from 100 to 1,500 updates, of characters and of pieces (benchmarks/laws.md)."""

_BY_PASSES = ((16, 256, 0.2, 16), (6, 192, 0.15, 12), (2, 192, 0.05, 5), (0, 192, 0.0, PASSES))
"""(passes that there is time for at least, d_model, dropout, most passes), of a text of `_MEASURED` tokens; see
docs/benchmarks/laws.md."""

_MEASURED = 670_000
"""Training tokens of the text that `_BY_PASSES` was measured on: one that is n times as long stands n times as many
passes before a model of that size learns it by heart."""

_LONG_TIME = 24_000_000
"""Positions from which a text that will be seen several times is learned better by d_model 256 (benchmarks/laws.md)."""

_FEW = 200_000
"""Tokens of a text that a smaller model, with more values dropped, is better for."""

_SWIFT = {"muon": {"lr": 0.03}}
"""Rates of a small model over some hundred updates (docs/decisions, 2026-11-23-one-set-of-learning-rates)."""

_CALM = {"muon": {"lr": 0.04, "muon_lr": 0.01, "momentum": 0.85}}
"""Rates of a model of some million parameters over a thousand updates; the same page has the measurements."""

_LONG = {"muon": {"lr": 0.03, "muon_lr": 0.01, "momentum": 0.85, "weight_decay": 0.1}}
"""The same where decay and dropout keep it from learning the text by heart (benchmarks/laws.md)."""


def nominal_updates(minutes: float, positions: int, d_model: int, n_layers: int, pace: Pace = TWO_CORES) -> int:
    """Updates of so many positions that `minutes` are good for, at the speed that every law guesses: it has no clock.

    A position costs as the layers' matrices are large: n_layers d_model^2.
    """
    return max(1, int(60 * minutes / _update_seconds(positions, d_model, n_layers, pace)))


def is_worth_compiling(updates: int, minutes: float, positions: int, d_model: int, n_layers: int) -> bool:
    """Whether a training of so many updates (0: any number) or `minutes` (0: any time) on a GPU is long enough for a
    compiler, which takes half a minute and then a third off every update (benchmarks/2026-11-26-h100.md)."""
    lengths = [
        60 * minutes or math.inf,
        updates * _update_seconds(positions, d_model, n_layers, A_CARD) or math.inf,
    ]
    return _WORTH_COMPILING <= min(lengths) < math.inf


def _update_seconds(positions: int, d_model: int, n_layers: int, pace: Pace) -> float:
    cost = n_layers * d_model**2 / (4 * WIDE**2)
    return pace.an_update + positions * cost * pace.a_position


def scale_law(n_tokens: int, budget: Budget, bigram_loss: float) -> Scale:
    """Sizes and batch for a text of `n_tokens` training tokens.

    `bigram_loss` (nats per token, of the validation text under counts of the training text) is the yardstick of how
    hard a target is: `until_loss / bigram_loss` near 0.75 is reached by a small model in 0.3 M tokens, near 0.6 it
    takes a larger one and millions. The measurements are in docs/benchmarks/laws.md.
    """
    tiny = n_tokens < 20_000
    if tiny:
        return Scale(d_model=64, n_layers=2, n_ctx=64, batch_tokens=512)
    if budget.until_loss:
        scale = _scale_for_target(budget.until_loss / bigram_loss)
        return scale if budget.steps else _within_passes(scale, n_tokens)
    positions = (budget.minutes or DEFAULT_MINUTES) * budget.pace.a_minute
    if budget.steps or positions < TWO_CORES.a_minute:
        scale = Scale(d_model=128, n_layers=4, n_ctx=128, batch_tokens=1024, optimizer=_USUAL)
    else:
        scale = _scale_for_time(n_tokens, positions)
    d_model, n_layers = size_validated_in_time(
        scale.d_model,
        scale.n_layers,
        budget.minutes * budget.pace.a_minute / TWO_CORES.a_minute,
        budget.val_tokens,
        budget.d_vocab,
    )
    return replace(scale, d_model=d_model, n_layers=n_layers)


def _scale_for_time(n_tokens: int, positions: float) -> Scale:
    """A size for as many passes over the text as the time is good for, at a nominal pace: the law has no clock."""
    passes = positions / n_tokens
    _, d_model, dropout, most = next(row for row in _BY_PASSES if passes * _MEASURED / n_tokens >= row[0])
    if dropout and positions >= _LONG_TIME:
        d_model = 256
    if n_tokens < _FEW:
        d_model, dropout, most = 128, 0.3, 12
    return Scale(
        d_model=d_model,
        n_layers=4,
        n_ctx=128,
        batch_tokens=2048,
        most_steps=max(SHORT // 2, round(most * n_tokens / 2048)),
        dropout=dropout,
        optimizer=_LONG if dropout else _USUAL,
    )


def hidden_law(n_tokens: int, budget: Budget, bigram_loss: float) -> Scale:
    """As `scale_law`, for texts whose tokens are hidden: by the clock without dropout and decay, in four passes.

    What is hidden differs from pass to pass, so that there is less to learn by heart (benchmarks/laws.md).
    """
    scale = scale_law(n_tokens, budget, bigram_loss)
    if budget.until_loss or not scale.most_steps:
        return scale
    most_steps = max(SHORT, round(PASSES * n_tokens / 2048))
    return replace(scale, d_model=192, dropout=0.0, most_steps=most_steps, optimizer=_USUAL)


def _scale_for_target(ratio: float) -> Scale:
    """A size, and a horizon that is long enough with little to spare: the rate has to fall for the loss to arrive."""
    if ratio > 0.7:
        return Scale(d_model=128, n_layers=2, n_ctx=64, batch_tokens=1024, steps=250, optimizer=_SWIFT)
    if ratio > 0.61:
        steps = round(1200 * math.exp(15 * (0.627 - ratio)))
        return Scale(
            d_model=192, n_layers=4, n_ctx=256, batch_tokens=1024, steps=steps, most_steps=steps, optimizer=_CALM
        )  # fmt: skip
    steps = min(12_000, round(3000 * math.exp(70 * max(0.0, 0.592 - ratio))))
    return Scale(
        d_model=192, n_layers=5, n_ctx=256, batch_tokens=2048, steps=steps, most_steps=steps, dropout=0.15,
        optimizer=_LONG,
    )  # fmt: skip


def _within_passes(scale: Scale, n_tokens: int) -> Scale:
    """The same with a horizon of at most `MOST_PASSES` over the text, or some hundred updates, and a note where it is
    shorter: the yardstick says little of a small text, and more passes only learn it by heart."""
    most = max(SHORT, round(MOST_PASSES * n_tokens / scale.batch_tokens))
    if scale.steps <= most:
        return scale
    passes = [steps * scale.batch_tokens / n_tokens for steps in (scale.steps, most)]
    note = (
        f"The law for this loss would plan {scale.steps:,} updates, {passes[0]:,.0f} passes over so small a text; more"
        f" than {passes[1]:.0f} would only learn it by heart, so at most {most:,} are planned; --steps plans more."
    )
    return replace(scale, steps=most, most_steps=most if scale.most_steps else 0, note=note)


def pair_law(n_pairs: int, budget: Budget, yardstick: float) -> Scale:
    """Sizes and batch for `n_pairs` sentence pairs; an example is a bucket of 512 tokens a side.

    Buckets of an update are computed one after another, each as tight as its lengths allow. Dropout is what few pairs
    need: they are seen ten times and more. The shorter the time, the smaller the model: a large one would make few
    updates beside its validations and translations (benchmarks/2026-11-30-a-minute.md).
    """
    if 0 < 60 * budget.minutes < BRIEF_SECONDS:
        return Scale(d_model=64, n_layers=2, n_ctx=64, batch_size=4, accumulate=4)
    if 0 < 60 * budget.minutes < 2 * BRIEF_SECONDS and n_pairs >= 5_000:
        return Scale(d_model=128, n_layers=2, n_ctx=64, batch_size=4, accumulate=4, dropout=0.1)
    if n_pairs < 5_000:
        return Scale(d_model=128, n_layers=2, n_ctx=64, batch_size=2, accumulate=2, dropout=0.1)
    return Scale(d_model=256, n_layers=3, n_ctx=64, batch_size=4, accumulate=4, dropout=0.2)


SizeLaw = Callable[[int, Budget, float], Scale]
"""(how much there is to train on, the budget, a yardstick in nats or NaN where no target was given) -> scale."""


_A_TEXT = 26
"""Positions of a labelled text where a law has to guess, and what is computed beside them."""


_TEACHERS = 3
"""Trainings whose mean answers a classifier learns, where there is time (benchmarks/2026-11-25-xeon-2.md)."""


_FEW_LAYERS = 2
"""Layers of another run's body up to which labels are learned over it as from scratch."""


def labelled_law(n_texts: int, budget: Budget, entropy: float) -> Scale:
    """Sizes, batch and horizon for `n_texts` labelled texts.

    Labels are few beside words, and the loss of new texts soon rises while that of training texts falls: one block,
    half of all values dropped, some passes. A large eps keeps Adam from moving the row of a rare word as far as that of
    a common one, but over another run's body, whose rows are longer and have smaller gradients, it would hold them all.
    Half of all values dropped in each of several layers leaves too little: over a body of more than two it is a tenth.
    The rate of W_E is the lower the more updates there are, or under a clock are expected: rows go as far, in smaller
    steps. The measurements: docs/decisions, 2026-11-21-classifier-regularization.
    """
    large = n_texts >= 200_000
    batch_size = budget.batch_size or (256 if n_texts >= 20_000 else 64)
    d_model, n_layers = 128 if n_texts >= 2000 else 64, 2 if large else 1
    most_steps = max(500, round((2 if large else 5.7) * n_texts / batch_size))
    steps = budget.steps or most_steps
    if not (budget.steps or budget.until_loss):
        minutes = budget.minutes or DEFAULT_MINUTES
        steps = min(most_steps, nominal_updates(minutes, batch_size * _A_TEXT, d_model, n_layers))
    slower = 1.0 if large else min(1.0, 500 / steps)
    few = 0.3 if large else 0.5
    dropout, teachers = 0.1 if budget.body_layers > _FEW_LAYERS else few, budget.teachers
    if teachers is None:
        affords = budget.minutes and not (budget.steps or budget.until_loss or budget.body_layers)
        each = nominal_updates(budget.minutes, batch_size * _A_TEXT, d_model, n_layers) / most_steps
        teachers = _TEACHERS if affords and 20_000 <= n_texts and not large and each >= _TEACHERS + 1 else 0
    own = {"teacher_dropout": dropout, "teacher_embed_factor": slower} if teachers else {}
    teaching = TeachingConfig(teachers=teachers, **own)
    rates = {"lr": 3e-3, "muon_lr": 0.01, "weight_decay": 0.1, "embed_factor": 1.0 if teachers else slower}
    return Scale(
        d_model=d_model,
        n_layers=n_layers,
        n_ctx=64,
        batch_size=batch_size,
        steps=most_steps if budget.until_loss else 0,
        most_steps=most_steps,
        teaching=teaching,
        dropout=0.1 if teachers else dropout,
        optimizer={"muon": rates, "adamw": {"lr": 3e-4}} if budget.body_layers else {"muon": rates | {"eps": 1e-4}},
    )


def question_law(n_questions: int, budget: Budget, yardstick: float) -> Scale:
    """The same for questions about texts: two blocks that see nearly all words, of which few are to be left out."""
    own = replace(budget, batch_size=budget.batch_size or 32, teachers=0)
    scale = labelled_law(n_questions, own, yardstick)
    return replace(scale, n_layers=2, dropout=0.1)


def labelled_options(body_layers: int) -> LabelledOptions:
    """How texts are changed that a model learns to label, from scratch (0) or over a body of so many layers.

    What knows words one by one loses little where some are missing. A deep body has learned what words are beside each
    other: a text that lacks a third of its own, among them every third "not", is not what it knows
    (docs/decisions, 2026-11-28-fine-tuning-shows-whole-texts).
    """
    return LabelledOptions(word_dropout=0.1, disturbed=0.1) if body_layers > _FEW_LAYERS else LabelledOptions()


def image_law(n_images: int, budget: Budget, yardstick: float) -> Scale:
    """Sizes and batch for `n_images` training images; n_ctx is the grid of patches.

    Some thousand images are seen many times in any budget: a small model with dropout. Without a budget it ends after
    so many updates at the latest. Measured on 60,000 images of 28 x 28 pixels and two cores (docs/decisions,
    2026-11-21-two-dimensional-positions-reuse-names).
    """
    if n_images < 2_000:
        scale = Scale(d_model=64, n_layers=4, n_ctx=0, batch_size=32, most_steps=400, dropout=0.1)
    elif n_images < 20_000 or 0 < budget.minutes < 2:
        scale = Scale(d_model=96, n_layers=4, n_ctx=0, batch_size=64, most_steps=2000)
    else:
        scale = Scale(d_model=128, n_layers=6, n_ctx=0, batch_size=128, most_steps=3000)
    if budget.until_loss:  # a target needs a horizon to fall towards, not a clock
        return replace(scale, steps=scale.most_steps)
    return replace(scale, most_steps=0) if budget.minutes else scale


SIZE_LAWS: Mapping[str, SizeLaw] = {
    "text": scale_law,
    "hidden text": hidden_law,
    "labelled texts": labelled_law,
    "questions": question_law,
    "images": image_law,
    "pairs": pair_law,
}
"""Name, as in `Task.size_law` -> law; what it counts is said by the task's data (`Data.n_train`)."""


# less than two minutes: laws without a clock, so that the same command gives the same training everywhere

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
