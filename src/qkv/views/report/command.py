"""The command line that makes a run again, from its configuration alone.

It names every setting that the laws or the person chose, so that it does not depend on the clock: a budget of minutes
becomes the steps that its schedule was made for.
"""

import dataclasses
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from qkv.config import field_paths, flat
from qkv.data.config import ImageOptions, LabelledOptions
from qkv.instruments.schedule import LEVELS
from qkv.kernels.elementwise import UNMEASURED
from qkv.presets import Preset, find
from qkv.recipe import RunConfig
from qkv.recipe.unused_settings import unused_settings
from qkv.tasks import find_task
from qkv.training.precision import Machine, kernels_here, native_here

if TYPE_CHECKING:
    from _typeshed import DataclassInstance as Settings

_OF_DATA = ("train_bytes", "document_end", "classes", "pixels")
"""Settings of data without an option, which are empty where nobody and no law chose them."""
_LEFT_TO_OPTIONS = (
    "training.schedule.steps",
    "training.schedule.most_steps",
    "training.until_loss",
    "training.minutes",
)
_Pairs: TypeAlias = list[tuple[str, object]]
"""(dotted path of a setting, its value)"""


def command_of(config: RunConfig, steps: int | None, home: str = "") -> str:
    """`qkv train ...` that resolves to the same model, data, schedule and seed; `qkv import` for an imported model;
    nothing for one that another program trained.

    `steps` is the horizon that was measured, for a run whose budget was minutes. The folder `home` is written as `~` or
    `$HOME`. Raises ConfigError for a preset that this version does not know.
    """
    if config.watched:
        return ""
    words = ["qkv", "import", config.imported, "--out", "RUN"] if config.imported else _words(config, steps)
    if config.history:
        words[3:3] = ["--history", "--keep", config.history]
        words[3:3] = ["--text", config.data.source] if config.data.source else []
    return " ".join(_quoted(word, home) for word in words)


def _quoted(word: str, home: str) -> str:
    """A word as a shell reads it, with the home folder in a way that stays true between quotation marks."""
    if len(home) < 2 or f"{home}/" not in word:
        return shlex.quote(word)
    parts = [shlex.quote(part) if part else "" for part in word.split(f"{home}/")]
    return ("~/" if not parts[0] else parts[0] + '"$HOME"/') + '"$HOME"/'.join(parts[1:])


def _words(config: RunConfig, steps: int | None) -> list[str]:
    """The words of `qkv train`."""
    goes_on = bool(config.from_run)
    preset = find(config.preset, config.task, goes_on=goes_on)
    horizon = config.training.schedule.steps or steps or 0
    words = ["qkv", "train", *([config.data.source] if config.data.source else [])]
    words += [word for name, value in _options(config, horizon) for word in (name, str(value))]
    words += [word for change in config.changes[len(preset.changes) :] for word in ("--change", change)]
    chosen = _of_model(config, preset) + _of_data(config)
    chosen += _of_training(config, preset, horizon) + _of_machine(config)
    idle = unused_settings(config)  # it would be refused where somebody types the command
    settings = (f"{_shortest(path)}={_text(value)}" for path, value in chosen if path not in idle)
    return [*words, "--set", ",".join(settings)]


def _options(config: RunConfig, horizon: int) -> list[tuple[str, object]]:
    """What has an option of its own, with its value."""
    goes_on, data, training = bool(config.from_run), config.data, config.training
    options: list[tuple[str, object, bool]] = [
        ("--task", config.task, True),
        ("--preset", config.preset, not goes_on),  # these three are the other run's
        ("--tokenizer", data.tokenizer, bool(data.tokenizer) and not goes_on),
        ("--vocab", data.vocab, data.vocab > 0 and not goes_on),
        ("--from", config.from_run, goes_on),
        ("--val", data.val, bool(data.val)),
        ("--text-column", data.text_column, bool(data.text_column)),
        ("--label-column", data.label_column, bool(data.label_column)),
        ("--group-column", data.group_column, bool(data.group_column)),
        ("--steps", horizon, horizon > 0),
        ("--minutes", f"{training.minutes:g}", not horizon and training.minutes > 0),
        ("--until-loss", training.until_loss, training.until_loss > 0),
        ("--seed", config.seed, True),
        ("--watch", config.watch if config.watch in LEVELS else "light", True),
        ("--device", config.machine.device, True),
        ("--precision", config.machine.precision, True),
        ("--threads", config.machine.threads, True),
        ("--nproc", config.machine.ranks, config.machine.ranks > 1),
    ]
    return [(name, value) for name, value, is_given in options if is_given]


def _of_model(config: RunConfig, preset: Preset) -> _Pairs:
    """Sizes and layout, as far as a law or the person chose them."""
    sizes = [(f"model.sizes.{name}", value) for name, value in flat(config.model.sizes).items()]
    by_law = ("dropout", *(["tied"] if config.model.kind in preset.one_table else []))
    chosen = [pair for pair in sizes if pair[0] != "model.sizes.d_vocab"]
    chosen += _differing("model.layout", config.model.layout, preset.layout, always=by_law)
    if config.from_run:
        return [pair for pair in chosen if pair[0] in ("model.sizes.n_ctx", "model.layout.dropout")]
    return chosen


def _of_data(config: RunConfig) -> _Pairs:
    """How the data is read, and images cut."""
    chosen = [(f"data.{name}", value) for name in _OF_DATA if (value := getattr(config.data, name))]
    if find_task(config.task).label_column:
        labels = flat(config.data.labels or LabelledOptions())
        chosen += [(f"data.labels.{name}", value) for name, value in labels.items()]
    if config.data.images is not None:
        chosen += _differing("data.images", config.data.images, ImageOptions())
    if config.model.patches is not None:
        chosen += [(f"model.patches.{name}", getattr(config.model.patches, name)) for name in ("patch", "stride")]
    return chosen


def _of_training(config: RunConfig, preset: Preset, horizon: int) -> _Pairs:
    """Watching, training and the ledger."""
    training = dataclasses.replace(type(config.training)(), schedule=preset.schedule(horizon))
    usual = LEVELS.get(config.watch) or LEVELS["light"]
    chosen = [] if config.watch == "off" else _differing("watching", config.watching, usual)
    laws = ("batch_size", "accumulate", *(f"optimizer.{path}" for path in flat(config.training.optimizer)))
    made = _differing("training", config.training, training, always=laws)
    chosen += [pair for pair in made if pair[0] not in _LEFT_TO_OPTIONS]
    return chosen + _differing("ledger", config.ledger, type(config.ledger)())


def _of_machine(config: RunConfig) -> _Pairs:
    """How it is computed, where that is not what this machine would choose."""
    machine = _differing("machine", config.machine, Machine(kernels=config.machine.kernels))
    chosen = [pair for pair in machine if pair[0] in ("machine.shard", "machine.compile")]
    if config.machine.native != native_here(config.machine):
        chosen.append(("machine.native", config.machine.native))
    if config.machine.passes_natively and (here := kernels_here(config.machine)) is not None:
        made = config.machine.kernels or UNMEASURED[config.machine.dtype]
        chosen += _differing("machine.kernels", made, here)
    return chosen


def _shortest(path: str) -> str:
    """The shortest ending of a setting's path that names no other setting."""
    paths, parts = field_paths(RunConfig), path.split(".")
    endings = [".".join(parts[-n:]) for n in range(1, len(parts))]
    return next((e for e in endings if sum(p == e or p.endswith(f".{e}") for p in paths) == 1), path)


def _differing(prefix: str, config: "Settings", usual: "Settings", always: Sequence[str] = ()) -> _Pairs:
    """Settings that are not the usual ones, and those that a law may choose otherwise another time."""
    told, expected = set(always), flat(usual)
    return [(f"{prefix}.{p}", value) for p, value in flat(config).items() if p in told or value != expected.get(p)]


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
