"""Presets: a layout, an optimizer recipe and a size law under one name.

A preset is one entry of `PRESETS`; nothing else in the project knows a preset's name. The laws below turn a corpus
and a budget into sizes and a batch, with no clock in them, so that the same command gives the same model everywhere.
Which textbook sentences hold in a preset's layout is said by `cards`.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from qkv.errors import ConfigError, unknown
from qkv.models.counting import n_parameters, with_parameters
from qkv.models.layout import Layout, ModelConfig, Patches, Sizes
from qkv.tasks import TASKS, find_task
from qkv.training.brief import size_validated_in_time
from qkv.training.config import OptimizerConfig, ScheduleConfig, TeachingConfig

__all__ = [
    "DEFAULT_MINUTES",
    "OTHER_OPTIMIZERS",
    "PRESETS",
    "SIZE_LAWS",
    "Budget",
    "Preset",
    "Scale",
    "find",
    "model_config",
    "nominal_updates",
    "optimizer_config",
    "scale_law",
]


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


@dataclass(frozen=True, kw_only=True)
class Preset:
    """How one family of models is laid out and trained."""

    name: str
    """What is typed after --preset."""
    summary: str
    """One sentence for people."""
    source: str
    """Where the layout comes from."""
    stacks: tuple[str, ...]
    """Stacks it can be laid out as (`Task.stack`); the first is what it was made for."""
    layout: Layout
    """Which parts the model is composed of."""
    optimizer: OptimizerConfig
    """How it is trained."""
    warmup_share: float = 0.0
    """Share of the horizon over which the rate climbs."""
    decay_share: float = 0.5
    """Share of the horizon over which the rate falls."""
    floor: float = 0.0
    """The rate at the horizon as a share of the peak."""
    head_width: int = 32
    """Width of one head that the size law aims at, twice that from d_model 192 on; 0 is a single head."""
    mlp_ratio: float = 4.0
    """d_mlp as a multiple of d_model."""
    largest_layers: int = 99
    """Most blocks the size law may give it."""
    changes: tuple[str, ...] = ()
    """Changes that belong to the preset, in the change language."""
    matches: str = ""
    """The preset whose number of parameters at the same scale it is given, by its width; empty: the law's width."""

    def optimizer_for(self, steps: int, kind: str = "") -> OptimizerConfig:
        """The optimizer over a horizon of `steps` (0 where the loop measures one), or one of another `kind`.

        Muon's momentum of 0.95 averages over 20 updates, too many where there are few: below 400 it is 0.85, with a
        lower rate. Measured on characters, 220 steps: 1.855 nats against 1.869 with 0.9 (one seed each).
        """
        optimizer = self.optimizer if kind in ("", self.optimizer.kind) else OTHER_OPTIMIZERS[kind]
        if optimizer.kind != "muon" or not 0 < steps < SHORT:
            return optimizer
        return replace(optimizer, momentum=0.85, muon_lr=0.015)

    def schedule(self, steps: int, expected: int = 0) -> ScheduleConfig:
        """The schedule over a horizon of `steps`; 0 where the loop measures one, of which `expected` is a guess.

        The warm-up has to be known before the first update, and the same whenever the run is resumed.
        """
        return ScheduleConfig(
            steps=steps,
            warmup_steps=round(self.warmup_share * (steps or expected)),
            decay_share=self.decay_share,
            floor=self.floor,
        )


_MUON = OptimizerConfig(kind="muon", lr=0.01, muon_lr=0.02, beta1=0.9, beta2=0.95, weight_decay=0.0, clip=0.0)
_ADAMW = OptimizerConfig(kind="adamw", lr=1e-3, beta1=0.9, beta2=0.99, weight_decay=0.1, clip=1.0)

OTHER_OPTIMIZERS: Mapping[str, OptimizerConfig] = {
    "muon": _MUON,
    "adamw": replace(_ADAMW, lr=3e-3),
    "sgd": OptimizerConfig(kind="sgd", lr=0.1, momentum=0.9, weight_decay=0.0, clip=1.0),
}
"""Kind -> what a training gets that was asked for another kind than its preset's (benchmarks/laws.md)."""

PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            name="modern",
            summary="RMSNorm, rotary positions, QK-norm, SwiGLU: the layout of Qwen3, which stock transformers knows.",
            source="Yang et al. 2025 (arXiv 2505.09388); trained with Muon (Jordan et al. 2024)",
            stacks=("decoder", "encoder", "encoder-decoder"),
            layout=Layout(qk_norm=True, tied=False),
            optimizer=_MUON,
            mlp_ratio=8 / 3,
        ),
        Preset(
            name="fast",
            summary="Whatever wins the clock: as modern, with a squared-ReLU MLP.",
            source="So et al. 2021 (arXiv 2109.08668) for relu^2; trained with Muon",
            stacks=("decoder", "encoder", "encoder-decoder"),
            layout=Layout(qk_norm=True, tied=False, mlp="relu2"),
            optimizer=_MUON,
        ),
        Preset(
            name="gpt2",
            summary="LayerNorm before each sublayer, learned positions, GELU, biases, tied output.",
            source="Radford et al. 2019",
            stacks=("decoder",),
            layout=Layout(positions="learned", norm="layer", norm_eps=1e-5, mlp="gelu_tanh", bias=True, start="gpt2"),
            optimizer=_ADAMW,
            warmup_share=0.05,
            decay_share=0.95,
            floor=0.1,
        ),
        Preset(
            name="bert",
            summary="LayerNorm after each sublayer, learned positions, GELU, biases, tied output; sees both sides.",
            source="Devlin et al. 2018 (arXiv 1810.04805)",
            stacks=("encoder",),
            layout=Layout(
                positions="learned",
                norm="layer",
                norm_place="post",
                norm_eps=1e-12,
                norm_e=True,
                mlp="gelu",
                bias=True,
                start="bert",
            ),
            optimizer=dataclasses.replace(_ADAMW, weight_decay=0.01),
            warmup_share=0.1,
            decay_share=0.9,
        ),
        Preset(
            name="llama",
            summary="RMSNorm, rotary positions, SwiGLU, no biases, output of its own.",
            source="Touvron et al. 2023 (arXiv 2302.13971)",
            stacks=("decoder",),
            layout=Layout(tied=False, start="normal"),
            optimizer=_ADAMW,
            warmup_share=0.05,
            decay_share=0.95,
            floor=0.1,
            mlp_ratio=8 / 3,
        ),
        Preset(
            name="vaswani",
            summary="The layout of 2017: norm after each sublayer, sinusoidal positions, ReLU, tied scaled embedding.",
            source="Vaswani et al. 2017 (arXiv 1706.03762)",
            stacks=("decoder", "encoder", "encoder-decoder"),
            layout=Layout(
                positions="sinusoidal",
                norm="layer",
                norm_place="post",
                norm_eps=1e-6,
                mlp="relu",
                bias=True,
                embed_scale=True,
                start="xavier",
            ),
            optimizer=dataclasses.replace(_ADAMW, beta2=0.98, eps=1e-9, weight_decay=0.0),
            warmup_share=0.1,
            decay_share=0.9,
        ),
        Preset(
            name="shared",
            summary="As fast, with one table for all tokens that enter or are predicted: source, target and output.",
            source="Press and Wolf 2017 (arXiv 1608.05859) for the one table; trained with Muon",
            stacks=("encoder-decoder", "decoder", "encoder"),
            layout=Layout(qk_norm=True, tied=True, mlp="relu2"),
            optimizer=_MUON,
        ),
        Preset(
            name="textbook",
            summary="One attention and one MLP a layer, no biases or QK-norm, learned positions: every sentence holds.",
            source="the formulas of Vaswani et al. 2017 with the norm before each sublayer",
            stacks=("decoder", "encoder", "encoder-decoder"),
            layout=Layout(positions="learned", norm="layer", norm_eps=1e-5, mlp="gelu", tied=False, start="gpt2"),
            optimizer=dataclasses.replace(_ADAMW, weight_decay=0.0),
            warmup_share=0.05,
            decay_share=0.95,
        ),
        Preset(
            name="bloem",
            summary="The parameter-free first step of a well-known tutorial: W = I, so q = k = v = x; no MLP.",
            source="P. Bloem, Transformers from scratch, 2019",
            stacks=("decoder", "encoder"),
            layout=Layout(positions="none", norm="none", mlp="none", tied=False, skip=False, start="identity"),
            optimizer=dataclasses.replace(_ADAMW, lr=3e-3, weight_decay=0.0),
            warmup_share=0.05,
            decay_share=0.95,
            head_width=0,
            largest_layers=1,
            changes=("L*.W_[QKVO]=identity",),
        ),
        Preset(
            name="lstm",
            summary="No attention: two layers of LSTM, one behind the other, with as many parameters as `modern`.",
            source="Hochreiter and Schmidhuber 1997; stacked as in Zaremba et al. 2014 (arXiv 1409.2329)",
            stacks=("decoder", "encoder"),
            layout=Layout(
                mixer="lstm", positions="none", norm="none", mlp="none", skip=False, tied=False, start="recurrent"
            ),
            optimizer=dataclasses.replace(_ADAMW, lr=0.012, weight_decay=0.01),
            warmup_share=0.05,
            decay_share=0.95,
            head_width=0,
            largest_layers=2,
            matches="modern",
        ),
        Preset(
            name="bag",
            summary="No attention, no order: the mean of what may be seen, then MLPs, as many parameters as `modern`.",
            source="Iyyer et al. 2015 (Deep averaging networks, P15-1162)",
            stacks=("decoder", "encoder"),
            layout=Layout(mixer="mean", positions="none", tied=False, mlp="relu2"),
            optimizer=_MUON,
            head_width=0,
            largest_layers=2,
            matches="modern",
        ),
    )
}
"""Name -> preset."""


def find(name: str, task: str, *, goes_on: bool = False) -> Preset:
    """The preset of that name, if it can be laid out as the task's stack; an empty name is the task's default.

    A training that `goes_on` from a run has the preset of that run, whatever the task is that it now learns.

    Raises ConfigError for an unknown name, or one that was not made for such a stack.
    """
    wanted = find_task(task)
    name = name or wanted.preset
    if name not in PRESETS:
        raise ConfigError(unknown("preset", name, PRESETS))
    stacks = PRESETS[name].stacks
    if wanted.stack not in stacks and not goes_on:
        fitting = ", ".join(p.name for p in PRESETS.values() if wanted.stack in p.stacks)
        made_for = " or ".join(t.name for t in TASKS.values() if t.stack in stacks)
        raise ConfigError(f"preset {name!r} is for --task {made_for}, not {task}; for {task} use one of: {fitting}")
    return PRESETS[name]


# sizes


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How much training was asked for; 0 where it was not."""

    steps: int = 0
    minutes: float = 0.0
    until_loss: float = 0.0
    goes_on: bool = False
    """Whether it goes on from the weights of another run."""
    batch_size: int = 0
    """Examples a step, where they were chosen."""
    teachers: int | None = None
    """Trainings that come first, where their number was chosen."""
    val_tokens: int = 0
    """Tokens that a validation scores; 0 where that plays no part."""
    d_vocab: int = 0
    """Tokens that each of them is chosen from."""


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
        """The same for batches of `n` examples that were chosen: at most as many passes, but some hundred updates.

        The law's own batch may be cut into more parts than this one has examples.
        """
        most = max(min(self.most_steps, SHORT // 2), round(self.most_steps * self.examples(n_ctx) / n))
        return replace(self, batch_size=n, accumulate=max(1, min(self.accumulate, n)), most_steps=most)


_USUAL = {"muon": {"lr": 0.03, "muon_lr": 0.01, "momentum": 0.85}}
"""Better than the rates of a preset from 100 to 1,500 updates, of characters and of pieces (benchmarks/laws.md)."""

_A_MINUTE = 600_000
"""Positions that a minute is good for where a law has to guess: two cores make half to twice as many, of four layers of
192."""

_AN_UPDATE = 0.01
"""Seconds that an update takes, however few its positions."""

_BY_PASSES = ((16, 256, 0.2, 16), (6, 192, 0.15, 12), (2, 192, 0.05, 5), (0, 192, 0.0, PASSES))
"""(passes that there is time for at least, d_model, dropout, most passes), of a text of `_MEASURED` tokens; see
benchmarks/laws.md."""

_MEASURED = 670_000
"""Training tokens of the text that `_BY_PASSES` was measured on: one that is n times as long stands n times as many
passes before a model of that size learns it by heart."""

_LONG_TIME = 24_000_000
"""Positions from which a text that will be seen several times is learned better by d_model 256 (benchmarks/laws.md)."""

_FEW = 200_000
"""Tokens of a text that a smaller model, with more values dropped, is better for."""

_SWIFT = {"muon": {"lr": 0.03}}
"""Rates of a small model over some hundred updates (LOG.md, 2026-11-21)."""

_CALM = {"muon": {"lr": 0.04, "muon_lr": 0.01, "momentum": 0.85}}
"""Rates of a model of some million parameters over a thousand updates (LOG.md, 2026-11-21)."""

_LONG = {"muon": {"lr": 0.03, "muon_lr": 0.01, "momentum": 0.85, "weight_decay": 0.1}}
"""The same where decay and dropout keep it from learning the text by heart (benchmarks/laws.md)."""


def nominal_updates(minutes: float, positions: int, d_model: int, n_layers: int) -> int:
    """Updates of so many positions that `minutes` are good for, at the speed that every law guesses: it has no clock.

    A position costs as the layers' matrices are large: n_layers d_model^2.
    """
    cost = n_layers * d_model**2 / (4 * WIDE**2)
    return max(1, int(60 * minutes / (_AN_UPDATE + positions * cost * 60 / _A_MINUTE)))


def scale_law(n_tokens: int, budget: Budget, bigram_loss: float) -> Scale:
    """Sizes and batch for a text of `n_tokens` training tokens.

    `bigram_loss` (nats per token, of the validation text under counts of the training text) is the yardstick of how
    hard a target is: `until_loss / bigram_loss` near 0.75 is reached by a small model in 0.3 M tokens, near 0.6 it
    takes a larger one and millions. The measurements are in benchmarks/laws.md.
    """
    tiny = n_tokens < 20_000
    if tiny:
        return Scale(d_model=64, n_layers=2, n_ctx=64, batch_tokens=512)
    if budget.until_loss:
        scale = _scale_for_target(budget.until_loss / bigram_loss)
        return scale if budget.steps else _within_passes(scale, n_tokens)
    if budget.steps or 0 < budget.minutes < 1:
        scale = Scale(d_model=128, n_layers=4, n_ctx=128, batch_tokens=1024, optimizer=_USUAL)
    else:
        scale = _scale_for_minutes(n_tokens, budget.minutes or DEFAULT_MINUTES)
    d_model, n_layers = size_validated_in_time(
        scale.d_model, scale.n_layers, budget.minutes, budget.val_tokens, budget.d_vocab
    )
    return replace(scale, d_model=d_model, n_layers=n_layers)


def _scale_for_minutes(n_tokens: int, minutes: float) -> Scale:
    """A size for as many passes over the text as the time is good for, at a nominal speed: the law has no clock."""
    passes = minutes * _A_MINUTE / n_tokens
    _, d_model, dropout, most = next(row for row in _BY_PASSES if passes * _MEASURED / n_tokens >= row[0])
    if dropout and minutes * _A_MINUTE >= _LONG_TIME:
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
    need: they are seen ten times and more.
    """
    if n_pairs < 5_000:
        return Scale(d_model=128, n_layers=2, n_ctx=64, batch_size=2, accumulate=2, dropout=0.1)
    return Scale(d_model=256, n_layers=3, n_ctx=64, batch_size=4, accumulate=4, dropout=0.2)


SizeLaw = Callable[[int, Budget, float], Scale]
"""(how much there is to train on, the budget, a yardstick in nats or NaN where no target was given) -> scale."""


_A_TEXT = 26
"""Positions of a labelled text where a law has to guess, and what is computed beside them."""


_TEACHERS = 3
"""Trainings whose mean answers a classifier learns, where there is time (benchmarks/2026-11-25-xeon-2.md)."""


def labelled_law(n_texts: int, budget: Budget, entropy: float) -> Scale:
    """Sizes, batch and horizon for `n_texts` labelled texts.

    Labels are few beside words, and the loss of new texts soon rises while that of training texts falls: one block,
    half of all values dropped, some passes. A large eps keeps Adam from moving the row of a rare word as far as that of
    a common one, but over another run's body, whose rows are longer and have smaller gradients, it would hold them all.
    The rate of W_E is the lower the more updates there are, or under a clock are expected: rows go as far, in smaller
    steps. The measurements are in LOG.md.
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
    dropout, teachers = 0.3 if large else 0.5, budget.teachers
    if teachers is None:
        affords = budget.minutes and not (budget.steps or budget.until_loss or budget.goes_on)
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
        optimizer={"muon": rates, "adamw": {"lr": 3e-4}} if budget.goes_on else {"muon": rates | {"eps": 1e-4}},
    )


def image_law(n_images: int, budget: Budget, yardstick: float) -> Scale:
    """Sizes and batch for `n_images` training images; n_ctx is the grid of patches.

    Some thousand images are seen many times in any budget: a small model with dropout. Without a budget it ends after
    so many updates at the latest. The measurements, on 60,000 images of 28 x 28 pixels and two cores, stand in LOG.md.
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
    "images": image_law,
    "pairs": pair_law,
}
"""Name, as in `Task.size_law` -> law; what it counts is said by the task's data (`Data.n_train`)."""


def model_config(
    preset: Preset,
    kind: str,
    d_vocab: int,
    scale: Scale,
    pinned: Mapping[str, int],
    classes: tuple[str, ...] = (),
    patches: Patches | None = None,
) -> ModelConfig:
    """The model of a preset at a scale; `pinned` sizes (d_model, n_layers, ...) were chosen by the user or the data."""
    d_model = pinned.get("d_model", scale.d_model)
    head_width = preset.head_width * (2 if d_model >= WIDE else 1)  # half the patterns, and no worse where it is wide
    n_heads = max(1, d_model // head_width) if head_width else 1
    turned = 2 if patches is None else 4  # rotary positions turn pairs of a head's coordinates; of images, by two axes
    turned = turned if preset.layout.positions == "rotary" else 1
    while n_heads > 1 and d_model % (n_heads * turned):
        n_heads -= 1
    chosen: dict[str, int] = {
        "d_vocab": d_vocab,
        "d_model": d_model,
        "n_layers": min(scale.n_layers, preset.largest_layers),
        "n_heads": n_heads,
        "n_ctx": scale.n_ctx,
        "d_mlp": max(16, round(d_model * preset.mlp_ratio / 16) * 16),
    }
    layout = dataclasses.replace(preset.layout, dropout=scale.dropout, tied=preset.layout.tied and not classes)
    if patches is not None:  # there is no table of tokens whose rows could be scaled
        layout = dataclasses.replace(layout, embed_scale=False)
    sizes = Sizes(**(chosen | dict(pinned)))
    config = ModelConfig(kind=kind, sizes=sizes, layout=layout, classes=classes, patches=patches)  # type: ignore[arg-type]
    if not preset.matches or "d_model" in pinned:
        return config
    data = {name: value for name, value in pinned.items() if name in ("d_vocab", "n_ctx", "n_types")}
    other = model_config(PRESETS[preset.matches], kind, d_vocab, scale, data, classes, patches)
    matched = with_parameters(config, n_parameters(other)).sizes
    return replace(config, sizes=replace(sizes, d_model=matched.d_model, d_mlp=matched.d_mlp))


def optimizer_config(preset: Preset, scale: Scale, steps: int, kind: str = "") -> OptimizerConfig:
    """The preset's optimizer over a horizon of `steps`, or one of another `kind`, with what the size law knows better
    of that kind."""
    optimizer = preset.optimizer_for(steps, kind)
    return replace(optimizer, **scale.optimizer.get(optimizer.kind, {}))  # type: ignore[arg-type]
