"""Settings that change nothing beside the others: the one table of them, for who types one and for who repeats a run.

A row names settings, when they are idle, why, and what would wake them. Only what a person gave himself is refused
(`refuse_unused`): presets and laws fill in every setting of a configuration, and files of earlier runs are read as they
are. A value that says of a part that it is not there (`tied=false`, `teachers=0`) is no idle setting but true.
Settings that a model cannot have at all are refused where models are described (`qkv.models.layout`).
"""

import dataclasses
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from qkv.errors import ConfigError
from qkv.instruments.schedule import KINDS
from qkv.recipe.config import RunConfig
from qkv.tasks import find_task
from qkv.training.optimizers import settings_of


@dataclass(frozen=True, kw_only=True)
class Unused:
    """Some settings that change nothing in some configurations."""

    settings: tuple[str, ...]
    """Whole paths."""
    when: Callable[[RunConfig], object]
    """Whether they are idle in a configuration."""
    why: str
    """Beside what, as it follows `has no effect with`; `{training.optimizer.kind}` stands for that setting's value."""
    instead: str = ""
    """What to type for them to count; empty: nothing would do."""


def _table(prefix: str, names: str) -> tuple[str, ...]:
    return tuple(f"{prefix}.{name}" for name in names.split())


_CLASSIFIERS = ("Classifier", "CausalClassifier")
_PLAIN_TEXT = ("CausalLM", "MaskedLM")
_SCALING = _table("model.layout.rope_scaling", "factor slow fast original_ctx stretch whole_pairs")
_OF_HEADS = _table("watching", "circuits attention head_spectra")
_TEACHERS = _table("training.teaching", "teacher_dropout teacher_embed_factor joined")


def _is_image(config: RunConfig) -> bool:
    return config.model.kind == "ImageClassifier"


def _attends(config: RunConfig) -> bool:
    return config.model.layout.mixer == "attention"


def _has_biases(config: RunConfig) -> bool:
    """Whether `bias` makes any parameter: in attention, an MLP, a LayerNorm, or where a kind of model has its own."""
    layout = config.model.layout
    inside = (_attends(config) and layout.attention_bias == "same") or layout.mlp != "none" or layout.norm == "layer"
    return inside or config.model.kind in ("MaskedLM", "ImageClassifier")


def _moves_by_pixels(config: RunConfig) -> bool:
    """Whether the largest shift of an image is a pixel."""
    images, patches = config.data.images, config.model.patches
    assert images is not None and patches is not None
    return round(images.shift * max(patches.height, patches.width)) > 0


def _takes(config: RunConfig, name: str) -> bool:
    """Whether an optimizer of one's own takes a setting, as far as its class can be found."""
    try:
        return not config.training.optimizer.is_own or name in settings_of(config.training.optimizer.kind)
    except ConfigError:
        return True


def _looks(config: RunConfig) -> bool:
    """Whether any kind of look has an interval."""
    kinds = KINDS if _attends(config) else [kind for kind in KINDS if f"watching.{kind}" not in _OF_HEADS]
    return any(getattr(config.watching, kind) for kind in kinds)


UNUSED = (
    # data
    Unused(
        settings=_table("data", "tokenizer vocab"),
        when=_is_image,
        why="--task image, which reads no text",
    ),
    Unused(
        settings=("data.train_bytes",),
        when=lambda c: c.data.train_bytes and c.model.kind not in _PLAIN_TEXT,
        why="--task {task}, which reads its data whole",
    ),
    Unused(
        settings=("data.document_end",),
        when=lambda c: c.data.document_end and c.model.kind not in _PLAIN_TEXT,
        why="--task {task}, whose texts are not cut into documents",
    ),
    Unused(
        settings=_table("data.labels", "disturbed class_weights"),
        when=lambda c: c.task in ("multilabel", "regress", "tag"),
        why="--task {task}, whose texts have no single class",
    ),
    Unused(
        settings=("data.classes",),
        when=lambda c: c.data.classes and not c.model.classes,
        why="--task {task}, which tells no classes",
    ),
    Unused(
        settings=("data.pixels",),
        when=lambda c: c.data.pixels and not _is_image(c),
        why="--task {task}, which reads no images",
    ),
    Unused(
        settings=("data.images.size",),
        when=lambda c: c.data.images and c.data.pixels,
        why="data.pixels={data.pixels}, which says how large images are",
    ),
    Unused(
        settings=("data.images.shift",),
        when=lambda c: c.data.images and c.data.images.shift and not _moves_by_pixels(c),
        why="images of {model.patches.width} x {model.patches.height} pixels, of which that is less than half a pixel",
        instead="give a larger one",
    ),
    # model
    Unused(
        settings=("model.sizes.d_mlp",),
        when=lambda c: c.model.layout.mlp == "none",
        why="mlp=none",
        instead="add --set mlp=gelu",
    ),
    Unused(
        settings=("model.sizes.n_types",),
        when=lambda c: c.model.sizes.n_types and _is_image(c),
        why="--task image, which reads no text",
    ),
    Unused(
        settings=("model.layout.norm_place",),
        when=lambda c: c.model.layout.norm == "none",
        why="norm=none",
        instead="add --set norm=layer",
    ),
    Unused(
        settings=("model.layout.norm_eps",),
        when=lambda c: c.model.layout.norm == "none" and not c.model.layout.qk_norm,
        why="norm=none",
        instead="add --set norm=layer",
    ),
    Unused(
        settings=("model.layout.bias",),
        when=lambda c: c.model.layout.bias and not _has_biases(c),
        why="mixer={model.layout.mixer}, attention_bias={model.layout.attention_bias}, norm={model.layout.norm} and"
        " mlp=none, none of which has a bias by it",
    ),
    Unused(
        settings=("model.layout.tied",),
        when=lambda c: c.model.layout.tied and c.model.kind in _CLASSIFIERS,
        why="--task {task}, whose output is W_cls and not W_U",
    ),
    Unused(
        settings=("model.layout.rope_base", *_SCALING),
        when=lambda c: not _attends(c),
        why="mixer={model.layout.mixer}, which has no rotary positions",
    ),
    Unused(
        settings=("model.layout.rope_base", *_SCALING),
        when=lambda c: c.model.layout.positions != "rotary",
        why="positions={model.layout.positions}",
        instead="add --set positions=rotary",
    ),
    Unused(settings=_SCALING, when=_is_image, why="--task image: it is for longer texts"),
    Unused(
        settings=("model.layout.rope_scaling.factor",),
        when=lambda c: c.model.layout.rope_scaling.kind == "none",
        why="rope_scaling.kind=none",
        instead="add --set rope_scaling.kind=linear",
    ),
    Unused(
        settings=_table("model.layout.rope_scaling", "slow fast original_ctx"),
        when=lambda c: c.model.layout.rope_scaling.kind not in ("llama3", "yarn"),
        why="rope_scaling.kind={model.layout.rope_scaling.kind}",
        instead="set that to llama3 or yarn",
    ),
    Unused(
        settings=("model.layout.rope_scaling.whole_pairs",),
        when=lambda c: c.model.layout.rope_scaling.kind != "yarn",
        why="rope_scaling.kind={model.layout.rope_scaling.kind}",
        instead="set that to yarn",
    ),
    # training
    Unused(
        settings=_table("training.optimizer", "beta1 beta2 eps"),
        when=lambda c: c.training.optimizer.kind == "sgd",
        why="optimizer.kind=sgd",
        instead="add --set optimizer.kind=adamw",
    ),
    Unused(
        settings=("training.optimizer.momentum",),
        when=lambda c: c.training.optimizer.kind == "adamw",
        why="optimizer.kind=adamw",
        instead="add --set optimizer.kind=sgd, or muon",
    ),
    Unused(
        settings=("training.optimizer.muon_lr",),
        when=lambda c: c.training.optimizer.kind != "muon",
        why="optimizer.kind={training.optimizer.kind}",
        instead="add --set optimizer.kind=muon",
    ),
    Unused(
        settings=_table("training.optimizer", "muon_lr momentum"),
        when=lambda c: c.training.optimizer.kind == "muon" and not _attends(c) and c.model.layout.mlp == "none",
        why="mixer={model.layout.mixer} and mlp=none: Muon moves the matrices of attention and MLP, and AdamW the rest",
        instead="set lr",
    ),
    *(
        Unused(
            settings=(f"training.optimizer.{name}",),
            when=lambda c, name=name: not _takes(c, name),
            why="optimizer.kind={training.optimizer.kind}, whose constructor does not take it",
        )
        for name in ("beta1", "beta2", "eps", "weight_decay", "momentum")
    ),
    Unused(
        settings=("training.schedule.most_steps",),
        when=lambda c: c.training.schedule.steps,
        why="a horizon of {training.schedule.steps} steps, which no clock measures",
        instead="give that many --steps",
    ),
    Unused(
        settings=("training.schedule.floor",),
        when=lambda c: not c.training.schedule.decay_share and not (c.training.until_loss and c.training.minutes),
        why="schedule.decay_share=0",
        instead="set that above 0",
    ),
    Unused(
        settings=("training.teaching.teachers",),
        when=lambda c: not find_task(c.task).taught and c.training.teaching.teachers,
        why="--task {task}, which does not learn from teachers",
    ),
    Unused(
        settings=_TEACHERS,
        when=lambda c: not find_task(c.task).taught,
        why="--task {task}, which does not learn from teachers",
    ),
    Unused(
        settings=_TEACHERS,
        when=lambda c: not c.training.teaching.teachers,
        why="teaching.teachers=0",
        instead="add --set teachers=3",
    ),
    # watching
    Unused(
        settings=_table("watching", f"{' '.join(KINDS)} per_doubling"),
        when=lambda c: c.watch == "off",
        why="--watch off",
        instead="give --watch light",
    ),
    Unused(
        settings=("control_share",),
        when=lambda c: c.watch == "off" or not c.report,
        why="watch={watch} and report={report}: no control is trained",
        instead="give neither --watch off nor --no-report",
    ),
    Unused(settings=_OF_HEADS, when=lambda c: not _attends(c), why="mixer={model.layout.mixer}, which has no heads"),
    Unused(
        settings=("watching.per_doubling",),
        when=lambda c: not _looks(c),
        why="intervals of 0 everywhere",
        instead="set one of them",
    ),
    Unused(
        settings=_table("ledger", "panels most_panels tolerance windows"),
        when=lambda c: not c.ledger.every,
        why="ledger.every=0",
        instead="add --set ledger.every=1",
    ),
    Unused(
        settings=("ledger.tolerance",),
        when=lambda c: c.ledger.most_panels < 2 * c.ledger.panels,
        why="ledger.panels={ledger.panels} and ledger.most_panels={ledger.most_panels}, since panels are never doubled",
        instead="set most_panels higher",
    ),
    # machine
    Unused(
        settings=("machine.capture",),
        when=lambda c: not dataclasses.replace(c.machine, capture=True).captures,
        why="machine.device={machine.device}, machine.native={machine.native} and machine.ranks={machine.ranks}: one"
        " process on a GPU, or with native passes, records updates",
    ),
    Unused(
        settings=_table("machine.kernels", "product activated gradient keys"),
        when=lambda c: not c.machine.passes_natively,
        why="machine.device={machine.device}, machine.native={machine.native} and machine.compile={machine.compile}:"
        " they are limits of what native passes take",
    ),
    Unused(
        settings=("machine.native",),
        when=lambda c: c.machine.device != "cpu" or c.machine.compile,
        why="machine.device={machine.device} and machine.compile={machine.compile}: it is for a processor's passes",
    ),
)
"""Every setting that changes nothing in some configurations; of several rows that hold the first one speaks."""


def unused_settings(config: RunConfig) -> dict[str, Unused]:
    """Whole path -> the row that says why, of every setting that changes nothing in this configuration."""
    found: dict[str, Unused] = {}
    for row in UNUSED:
        if row.when(config):
            found = dict.fromkeys(row.settings, row) | found
    return found


def refuse_unused(config: RunConfig, given: Mapping[str, str]) -> None:
    """Make sure that all that a person gave counts: whole path -> how it was given (`muon_lr=0.02`, `--vocab 300`).

    Raises ConfigError for the first that does not: why not, and what to type.
    """
    idle = unused_settings(config)
    for path, words in given.items():
        if row := idle.get(path):
            tables = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
            instead = f", or {row.instead}" if row.instead else ""
            why = _Typed().format(row.why, **tables)
            raise ConfigError(f"{words} has no effect with {why}; leave it out{instead}")


class _Typed(string.Formatter):
    """Values as a person types them."""

    def format_field(self, value: object, format_spec: str) -> str:
        return super().format_field(str(value).lower() if isinstance(value, bool) else value, format_spec)
