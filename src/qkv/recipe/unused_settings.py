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


@dataclass(frozen=True)
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
_ROTARY = ("model.layout.rope_base", "model.layout.rope_share", *_SCALING)
_OF_HEADS = _table("watching", "circuits attention head_spectra")
_TEACHERS = _table("training.teaching", "teacher_dropout teacher_embed_factor joined")
_NOT_TAUGHT, _NORM = "--task {task}, which does not learn from teachers", "add --set norm=layer"


def _is_image(config: RunConfig) -> bool:
    return config.model.kind == "ImageClassifier"


def _attends(config: RunConfig) -> bool:
    return config.model.layout.mixer == "attention"


def _has_biases(config: RunConfig) -> bool:
    """Whether `bias` makes any parameter: in attention, an MLP, a LayerNorm, or where a kind of model has its own."""
    layout = config.model.layout
    attends, mlp, norm = _attends(config), layout.mlp != "none", layout.norm == "layer"
    said = (attends and layout.attention_bias, mlp and layout.mlp_bias, norm and layout.norm_bias)
    return "same" in said or bool(config.model.sizes.d_embed) or config.model.kind in ("MaskedLM", "ImageClassifier")


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
    Unused(_table("data", "tokenizer vocab"), _is_image, "--task image, which reads no text"),
    Unused(("data.train_bytes",), lambda c: c.data.train_bytes and c.model.kind not in _PLAIN_TEXT,
           "--task {task}, which reads its data whole"),
    Unused(("data.document_end",), lambda c: c.data.document_end and c.model.kind not in _PLAIN_TEXT,
           "--task {task}, whose texts are not cut into documents"),
    Unused(_table("data.labels", "disturbed class_weights"), lambda c: c.task in ("multilabel", "regress", "tag"),
           "--task {task}, whose texts have no single class"),
    Unused(_table("data.labels", "disturbed class_weights linear"), lambda c: c.task == "answer",
           "--task answer, whose texts have no classes"),
    Unused(("data.classes",), lambda c: c.data.classes and not c.model.classes,
           "--task {task}, which tells no classes"),
    Unused(("data.pixels",), lambda c: c.data.pixels and not _is_image(c), "--task {task}, which reads no images"),
    Unused(("data.images.size",), lambda c: c.data.images and c.data.pixels,
           "data.pixels={data.pixels}, which says how large images are"),
    Unused(("data.images.shift",), lambda c: c.data.images and c.data.images.shift and not _moves_by_pixels(c),
           "images of {model.patches.width} x {model.patches.height} pixels, of which that is less than half a pixel",
           "give a larger one"),
    # model
    Unused(("model.sizes.d_mlp", "model.layout.mlp_bias"), lambda c: c.model.layout.mlp == "none",
           "mlp=none", "add --set mlp=gelu"),
    Unused(("model.sizes.n_types",), lambda c: c.model.sizes.n_types and _is_image(c),
           "--task image, which reads no text"),
    Unused(("model.layout.norm_place",), lambda c: c.model.layout.norm == "none", "norm=none", _NORM),
    Unused(("model.layout.norm_eps",), lambda c: c.model.layout.norm == "none" and not c.model.layout.qk_norm,
           "norm=none", _NORM),
    Unused(("model.layout.bias",), lambda c: c.model.layout.bias and not _has_biases(c),
           "mixer={model.layout.mixer}, attention_bias={model.layout.attention_bias}, norm={model.layout.norm},"
           " norm_bias={model.layout.norm_bias}, mlp={model.layout.mlp} and mlp_bias={model.layout.mlp_bias}, none of"
           " which has a bias by it"),
    Unused(("model.layout.norm_bias",), lambda c: c.model.layout.norm_bias == "all" and c.model.layout.norm != "layer",
           "norm={model.layout.norm}, which has no biases", _NORM),
    Unused(("model.layout.scale",), lambda c: c.model.layout.score_factor,
           "score_factor={model.layout.score_factor}, which scores are multiplied by instead"),
    Unused(("model.layout.window",), lambda c: c.model.layout.window >= c.model.sizes.n_ctx
           and not c.model.layout.window_rope_base,
           "n_ctx={model.sizes.n_ctx}: no layer sees more positions anyway", "give a smaller one"),
    Unused(_table("model.layout", "window_layers window_rope_base"),
           lambda c: c.model.layout.window and not any(map(c.model.layout.windowed, range(c.model.sizes.n_layers))),
           "n_layers={model.sizes.n_layers}, none of which is windowed", "set window_layers to w"),
    Unused(("model.layout.tied",), lambda c: c.model.layout.tied and c.model.kind in _CLASSIFIERS,
           "--task {task}, whose output is W_cls and not W_U"),
    Unused(_ROTARY, lambda c: not _attends(c), "mixer={model.layout.mixer}, which has no rotary positions"),
    Unused(_ROTARY, lambda c: c.model.layout.positions != "rotary",
           "positions={model.layout.positions}", "add --set positions=rotary"),
    Unused(_ROTARY, lambda c: not any(map(c.model.layout.turned, range(c.model.sizes.n_layers))),
           "rope_layers={model.layout.rope_layers}, by which no layer is turned", "set that to r"),
    Unused(_SCALING, _is_image, "--task image: it is for longer texts"),
    Unused(_SCALING[:1], lambda c: c.model.layout.rope_scaling.kind == "none",
           "rope_scaling.kind=none", "add --set rope_scaling.kind=linear"),
    Unused(_SCALING[1:4], lambda c: c.model.layout.rope_scaling.kind not in ("llama3", "yarn"),
           "rope_scaling.kind={model.layout.rope_scaling.kind}", "set that to llama3 or yarn"),
    Unused(_SCALING[5:], lambda c: c.model.layout.rope_scaling.kind != "yarn",
           "rope_scaling.kind={model.layout.rope_scaling.kind}", "set that to yarn"),
    # training
    Unused(_table("training.optimizer", "beta1 beta2 eps"), lambda c: c.training.optimizer.kind == "sgd",
           "optimizer.kind=sgd", "add --set optimizer.kind=adamw"),
    Unused(("training.optimizer.momentum",), lambda c: c.training.optimizer.kind == "adamw",
           "optimizer.kind=adamw", "add --set optimizer.kind=sgd, or muon"),
    Unused(("training.optimizer.muon_lr",), lambda c: c.training.optimizer.kind != "muon",
           "optimizer.kind={training.optimizer.kind}", "add --set optimizer.kind=muon"),
    Unused(_table("training.optimizer", "muon_lr momentum"),
           lambda c: c.training.optimizer.kind == "muon" and not _attends(c) and c.model.layout.mlp == "none",
           "mixer={model.layout.mixer} and mlp=none: Muon moves the matrices of attention and MLP, and AdamW the rest",
           "set lr"),
    *(Unused((f"training.optimizer.{name}",), lambda c, name=name: not _takes(c, name),
             "optimizer.kind={training.optimizer.kind}, whose constructor does not take it")
      for name in ("beta1", "beta2", "eps", "weight_decay", "momentum")),
    Unused(("training.schedule.most_steps",), lambda c: c.training.schedule.steps,
           "a horizon of {training.schedule.steps} steps, which no clock measures", "give that many --steps"),
    Unused(("training.schedule.floor",),
           lambda c: not c.training.schedule.decay_share and not (c.training.until_loss and c.training.minutes),
           "schedule.decay_share=0", "set that above 0"),
    Unused(("training.teaching.teachers",), lambda c: not find_task(c.task).taught and c.training.teaching.teachers,
           _NOT_TAUGHT),
    Unused(_TEACHERS, lambda c: not find_task(c.task).taught, _NOT_TAUGHT),
    Unused(_TEACHERS, lambda c: not c.training.teaching.teachers, "teaching.teachers=0", "add --set teachers=3"),
    # watching
    Unused(_table("watching", f"{' '.join(KINDS)} per_doubling"), lambda c: c.watch == "off",
           "--watch off", "give --watch light"),
    Unused(("control_share",), lambda c: c.watch == "off" or not c.report,
           "watch={watch} and report={report}: no control is trained", "give neither --watch off nor --no-report"),
    Unused(_OF_HEADS, lambda c: not _attends(c), "mixer={model.layout.mixer}, which has no heads"),
    Unused(("watching.attention",), lambda c: c.watching.attention and not c.model.layout.plain_scores,
           "a window, sinks, score_cap, or alibi or relative positions: there what heads attend to is not measured"),
    Unused(("watching.per_doubling",), lambda c: not _looks(c), "intervals of 0 everywhere", "set one of them"),
    Unused(_table("ledger", "panels most_panels tolerance windows"), lambda c: not c.ledger.every,
           "ledger.every=0", "add --set ledger.every=1"),
    Unused(("ledger.tolerance",), lambda c: c.ledger.most_panels < 2 * c.ledger.panels,
           "ledger.panels={ledger.panels} and ledger.most_panels={ledger.most_panels}, since panels are never doubled",
           "set most_panels higher"),
    # machine
    Unused(("machine.capture",), lambda c: not dataclasses.replace(c.machine, capture=True).captures,
           "machine.device={machine.device}, machine.native={machine.native} and machine.ranks={machine.ranks}: one"
           " process on a GPU, or with native passes, records updates"),
    Unused(_table("machine.kernels", "product activated gradient keys"), lambda c: not c.machine.passes_natively,
           "machine.device={machine.device}, machine.native={machine.native} and machine.compile={machine.compile}:"
           " they are limits of what native passes take"),
    Unused(("machine.native",), lambda c: c.machine.device != "cpu" or c.machine.compile,
           "machine.device={machine.device} and machine.compile={machine.compile}: it is for a processor's passes"),
)  # fmt: skip
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
