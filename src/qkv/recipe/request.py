"""What a person asks for, and the configuration that it becomes: every law is applied here, once, and written down.

`Request` holds what was typed, None where nothing was. `resolve` makes of it a `RunConfig` in which nothing is left to
decide: it is what `config.toml` holds, what a resume reads, and what a study varies.
"""

import dataclasses
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from qkv.config import field_paths, flat, override
from qkv.data.config import DataConfig, ImageOptions, whole_source
from qkv.data.corpus import Corpus
from qkv.errors import ConfigError, RunFolderError, typed, unknown
from qkv.extensions import spec_of
from qkv.folder.run_folder import RunFolder
from qkv.folder.verified import check_weights
from qkv.instruments.schedule import LEVELS, WatchConfig, watch_word
from qkv.laws import (
    A_CARD,
    DEFAULT_MINUTES,
    SIZE_LAWS,
    TWO_CORES,
    Budget,
    Pace,
    Scale,
    bytes_worth_reading,
    is_worth_compiling,
    labelled_options,
    nominal_updates,
)
from qkv.models.counting import n_parameters, with_parameters
from qkv.models.layout import ModelConfig, Sizes
from qkv.othernames import ours
from qkv.presets import OTHER_OPTIMIZERS, Preset, find, model_config, optimizer_config
from qkv.recipe.config import RunConfig
from qkv.recipe.unused_settings import refuse_unused
from qkv.tasks import Data, Task, find_task
from qkv.training.config import TrainingConfig
from qkv.training.optimizers import spelled
from qkv.training.precision import Machine
from qkv.training.precision import resolve as resolve_machine

ON_SPIKE = ("stop", "rollback", "ignore")
"""What can be done where the training loss jumps up and stays there."""

_OF_A_RUN = ("manifest.json", "source.json")
"""Beside config.toml, what a run folder holds once it is finished, and before."""

OPTIONS = {
    **{name: f"--{name}" for name in ("task", "preset", "seed", "watch")},
    "from_run": "--from",
    "changes": "--change",
    **dict.fromkeys(("imported", "history", "watched", "model.kind", "model.classes"), ""),
    **{f"model.patches.{name}": "" for name in ("height", "width", "channels")},
    "training.minutes": "--minutes",
    "training.until_loss": "--until-loss",
    "training.schedule.steps": "--steps",
    "training.schedule.continues": "--extend",
    "machine.device": "--device",
    "machine.ranks": "--nproc",
}
"""Settings that laws read before others are set -> the option that says them; empty: they follow from others."""

BESIDE_SET = {
    **{name: f"data.{name}" for name in ("source", "val", "tokenizer", "vocab")},
    **{f"{of}_column": f"data.{of}_column" for of in ("text", "label", "group")},
    **{name: f"machine.{name}" for name in ("precision", "threads", "shard")},
    "on_spike": "training.on_spike",
    "report": "report",
}
"""Field of a request that is an option -> the setting that it gives, which --set can give as well."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A training as it was asked for. None and empty mean: choose for me."""

    source: str = ""
    task: str | None = None
    preset: str | None = None
    from_run: str | None = None
    extend: int | None = None
    steps: int | None = None
    minutes: float | None = None
    until_loss: float | None = None
    seed: int | None = None
    set: Mapping[str, object] = field(default_factory=dict)
    val: str | None = None
    tokenizer: str | None = None
    vocab: int | None = None
    parameters: int | None = None
    text_column: str | None = None
    label_column: str | None = None
    group_column: str | None = None
    changes: tuple[str, ...] = ()
    watch: str | None = None
    device: str | None = None
    precision: str | None = None
    threads: int | None = None
    nproc: int | None = None
    shard: bool | None = None
    on_spike: str | None = None
    report: bool | None = None

    def __post_init__(self) -> None:
        if self.steps is not None and self.minutes is not None:
            raise ConfigError("--steps and --minutes are two budgets; give one of them")
        if self.extend is not None:
            self._check_extend()
        for name in ("extend", "steps", "minutes", "until_loss"):
            value = getattr(self, name)
            if value is not None and not (0 < value < math.inf):
                raise ConfigError(f"{name} is {value}; expected a number above 0")
        if self.on_spike is not None and self.on_spike not in ON_SPIKE:
            raise ConfigError(unknown("value of --on-spike", self.on_spike, ON_SPIKE))
        object.__setattr__(self, "set", dict(as_written(name, value) for name, value in self.set.items()))
        for name in self.set:
            if (option := OPTIONS.get(_path_of(name))) is not None:
                how = f"give {option} {self.set[name]}" if option else "leave it out"
                raise ConfigError(f"{name} cannot be set by --set; {how}")
        self.given()
        if self.seed is not None and self.seed < 0:
            raise ConfigError(f"seed is {self.seed}; expected a whole number of at least 0")
        if self.watch is not None:
            share = watch_word(self.watch) not in LEVELS
            if share and any(_path_of(name).startswith("watching.") for name in self.set):
                raise ConfigError(
                    f"--watch {self.watch} chooses the intervals of watching; set them with --watch light"
                )

    def _check_extend(self) -> None:
        if not self.from_run:
            raise ConfigError("--extend trains a finished run longer; name it: qkv train --from RUN --extend STEPS")
        for name in ("steps", "minutes", "until_loss"):
            if getattr(self, name) is not None:
                raise ConfigError(f"--extend and --{name.replace('_', '-')} are two budgets; give one of them")

    def given(self) -> dict[str, str]:
        """Every setting that was given, by its whole path -> in which words: `muon_lr=0.02`, `--vocab 300`.

        Raises ConfigError for one that was given twice, of which one would not count.
        """
        options = {path: (name, getattr(self, name)) for name, path in BESIDE_SET.items()}
        found = {path: _option(*given) for path, given in options.items() if given[1] not in (None, "")}
        for name, value in self.set.items():
            if path := _path_of(name):
                if path in found:
                    raise ConfigError(f"{found[path]} and {name}={value} give one setting; leave one of them out")
                found[path] = f"{name}={value}"
        return found


def resolve(request: Request, cache: Path | None, data: Data | None = None) -> tuple[RunConfig, Data, Scale]:
    """Apply every law: (the configuration, the data it speaks of, the scale that was chosen).

    `data` are those that the request speaks of, where they have been read already.

    Raises ConfigError or SourceError for the first thing that does not fit.
    """
    task = find_task(request.task or "causal")
    _check_no_run(request.source)
    parent = _parent(request, task)
    preset = find(parent.preset if parent else request.preset or "", task.name, goes_on=parent is not None)
    machine = _machine(request)
    is_text = task.size_law in _OF_TEXT
    on_a_card = machine.device == "cuda" and is_text and not request.steps  # who names steps compares
    pace = A_CARD if on_a_card else TWO_CORES
    read = bytes_worth_reading(request.minutes or 0.0, pace.a_minute / TWO_CORES.a_minute)
    settings = _data_config(request, task, parent, read if is_text and not request.until_loss else 0)
    data = data or task.load(settings, cache=cache)
    budget = _budget(request, task, data, parent, pace)
    yardstick = task.yardstick_nats(data) if budget.until_loss else math.nan
    scale = SIZE_LAWS[task.size_law](data.n_train, budget, yardstick)
    model = _model(request, task, preset, data, scale, parent)
    if budget.batch_size:
        scale = scale.of_batches(budget.batch_size, model.sizes.n_ctx)
    elif on_a_card:
        scale = scale.of_larger_batches(budget.pace.batch, model.sizes.n_ctx)
    config = RunConfig(
        task=task.name,
        preset=preset.name,
        seed=1 if request.seed is None else request.seed,
        watch=watch_word(request.watch or "light"),
        watching=LEVELS.get(request.watch or "light") or WatchConfig(),
        from_run=str(Path(request.from_run).absolute()) if request.from_run else "",
        changes=(*preset.changes, *request.changes),
        data=settings,
        model=model,
        training=training_config(
            preset,
            scale,
            budget,
            model.sizes,
            positions=task.positions(data, model.sizes),
            kind=_optimizer_kind(request),
        ),
        machine=machine,
    )
    given: dict[str, object] = {"machine.shard": request.shard, "on_spike": request.on_spike, "report": request.report}
    asked = _settings_of(request, "training.schedule")
    if asked.get("decay") == "cosine" and "decay_share" not in asked:
        given["training.schedule.decay_share"] = 1.0
    config = override(config, dict(request.set) | {name: value for name, value in given.items() if value is not None})
    _check_model(config.model, model, task.model_sizes(data), goes_on=parent is not None)
    config = dataclasses.replace(config, model=config.model.resolved())
    refuse_unused(config, request.given())
    if advice := "" if scale.note else compiling_advice(config, task.positions(data, config.model.sizes)):
        scale = dataclasses.replace(scale, note=advice)
    return config, data, scale


def _machine(request: Request) -> Machine:
    """Where and how exactly it is computed; a precision that was set counts, since kernels are those of a precision."""
    precision = _settings_of(request, "machine").get("precision")
    return resolve_machine(
        request.device or "cpu",
        precision if precision in ("fp32", "bf16") else request.precision or "auto",
        request.threads or 0,
        ranks=request.nproc or 1,
    )


def _budget(request: Request, task: Task, data: Data, parent: "_Parent | None", pace: Pace) -> Budget:
    """What the size law may spend, and what was set of that which it would choose."""
    examples = str(_settings_of(request, "training").get("batch_size", ""))
    is_sized = bool(request.parameters or _settings_of(request, "model.sizes"))  # what it costs is not the law's guess
    teachers = str(_settings_of(request, "training.teaching").get("teachers", "0" if is_sized else ""))
    return Budget(
        steps=request.steps or 0,
        minutes=request.minutes or 0.0,
        until_loss=request.until_loss or 0.0,
        body_layers=parent.model.sizes.n_layers if parent else 0,
        batch_size=int(examples) if examples.isdecimal() else 0,
        teachers=int(teachers) if teachers.isdecimal() else None,
        val_tokens=len(cast(Corpus, data).val) if task.size_law in _OF_TEXT else 0,
        d_vocab=task.model_sizes(data).get("d_vocab", 0),
        pace=pace,
    )


def compiling_advice(config: RunConfig, positions: int) -> str:
    """A sentence for who trains a text on a GPU for long without a compiler, or ""; an example is of `positions`."""
    machine, training, sizes = config.machine, config.training, config.model.sizes
    is_text = config.model.kind == "CausalLM" and config.model.layout.mixer == "attention"
    if machine.compile or machine.device != "cuda" or not machine.captures or not is_text:
        return ""
    updates = training.schedule.steps or training.schedule.most_steps
    batch = training.batch_size * positions
    if not is_worth_compiling(updates, training.minutes, batch, sizes.d_model, sizes.n_layers):
        return ""
    return "Worth compiling: --set machine.compile=true takes half a minute, and a third off each update on a GPU."


_OF_TEXT = ("text", "hidden text")
"""Size laws of the tasks whose data are one plain text."""


def _check_no_run(source: str) -> None:
    """Make sure that what is to be read is not a run folder. Raises ConfigError that says what may have been meant."""
    folder = Path(source)
    if not source or not ((folder / "config.toml").is_file() and any((folder / name).is_file() for name in _OF_A_RUN)):
        return
    run = shlex.quote(source)
    resume = "" if RunFolder(folder).is_import else f" to go on with it: qkv train --out {run} --resume;"
    raise ConfigError(
        f"{source} is a run folder, not something to train on;{resume} to start from its weights: qkv train SOURCE"
        f" --from {run}"
    )


def _data_config(request: Request, task: Task, parent: "_Parent | None", train_bytes: int) -> DataConfig:
    """Where the data come from, `train_bytes` of a training text at most (0: all of it).

    Raises ConfigError for an option that has no meaning for the task.
    """
    n_layers = parent.model.sizes.n_layers if parent else 3 * (task.name == "answer")  # for questions as a deep body
    config = DataConfig(
        source=whole_source(request.source),
        tokenizer=_absolute(request.tokenizer or (parent.tokenizer if parent else task.tokenizer)),
        vocab=request.vocab or 0,
        val=whole_source(request.val or ""),
        train_bytes=train_bytes,
        text_column=request.text_column or "",
        label_column=request.label_column or "",
        group_column=request.group_column or "",
        labels=labelled_options(n_layers) if task.label_column else None,
        images=ImageOptions() if task.reads == "images" else None,
    )
    config = override(config, _settings_of(request, "data"))
    if (config.label_column or config.group_column) and not task.label_column:
        what = ("--label-column names what a classifier learns to tell",
                "--group-column keeps rows of a labeled table together")[not config.label_column]  # fmt: skip
        raise ConfigError(f"{what}, and --task {task.name} has no labels; leave it out, or give --task classify")
    return config


def _option(name: str, value: object) -> str:
    """How an option was typed: `--text-column story`, `--no-shard`, or the source alone."""
    option = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return option if value else option.replace("--", "--no-", 1)
    return str(value) if name == "source" else f"{option} {value}"


def _path_of(name: str) -> str:
    """The setting that a path, which may be shortened, means; empty for none or several, which are refused when set."""
    paths = field_paths(RunConfig)
    found = [path for path in paths if path == name] or [path for path in paths if path.endswith(f".{name}")]
    return found[0] if len(found) == 1 else ""


def setting_named(name: str) -> str:
    """The setting that a name means, though another program's, as `set` takes it; empty where it means none or many, or
    one that has an option of its own.
    """
    here = ours(name)
    return here if _path_of(here) not in {"", *OPTIONS, *BESIDE_SET.values()} else ""


def as_written(name: str, value: object) -> tuple[str, object]:
    """A setting of --set; a path as its option would write it down, code of one's own as `module:name`."""
    whole = {
        "data.source": whole_source, "data.val": whole_source, "data.tokenizer": _absolute,
        "training.optimizer.kind": spelled,
    }  # fmt: skip
    path = _path_of(name)
    value = spec_of(value, name) if callable(value) else value
    if path == "model.kind" and ":" in str(value):
        return "model.code", value
    return name, whole[path](str(value)) if path in whole else value


def _settings_of(request: Request, table: str) -> dict[str, object]:
    """What --set says of one table of the configuration, by paths inside it; every other setting is left for later."""
    paths = {_path_of(name): value for name, value in request.set.items()}
    return {path.removeprefix(f"{table}."): value for path, value in paths.items() if path.startswith(f"{table}.")}


def _model(
    request: Request, task: Task, preset: Preset, data: Data, scale: Scale, parent: "_Parent | None"
) -> ModelConfig:
    """The parent's model under the task's own head, or one by the laws, with what was set taken as given."""
    classes = task.classes(data)
    if parent:
        model = _shortened(parent.model, _settings_of(request, "model.sizes").get("n_ctx"))
        kind, layout = task.starts_from[model.kind], model.layout
        if kind != model.kind:  # another head over the body: its W_U stays behind, and what was tied to it
            layout = dataclasses.replace(
                layout, tied=False, head_bias=False, head_transform=False, dropout=scale.dropout
            )
        return dataclasses.replace(model, kind=kind, layout=layout, classes=classes)
    pinned = dict(task.model_sizes(data)) | {
        name: int(str(value)) for name, value in _settings_of(request, "model.sizes").items() if str(value).isdecimal()
    }
    scale = dataclasses.replace(scale, n_ctx=task.needed_positions(data) or scale.n_ctx)
    d_vocab, patches = pinned.get("d_vocab", 0), task.patches(data)
    model = model_config(preset, task.model_kind, d_vocab, scale, pinned, classes, patches)
    if not request.parameters:
        return model
    if "d_model" in pinned:
        raise ConfigError("--parameters chooses d_model; give it, or --set d_model, not both")
    model = with_parameters(model, request.parameters, other_heads="d_head" not in pinned)
    for name, value in pinned.items():
        if value and (chosen := getattr(model.sizes, name)) != value:
            raise ConfigError(
                f"--parameters chooses {name} with the width, {chosen} for {request.parameters:,}, and it was set to"
                f" {value}; leave one of them out, or give --set d_model instead of --parameters"
            )
    return model


def _check_model(made: ModelConfig, chosen: ModelConfig, by_data: Mapping[str, int], *, goes_on: bool) -> None:
    """Make sure that settings left the model what it has to be: where it `goes_on`, the other run's, and always of the
    sizes that the data need. Raises ConfigError that says what was set.
    """
    dropped = dataclasses.replace(chosen.layout, dropout=made.layout.dropout)
    if goes_on and made != dataclasses.replace(chosen, layout=dropped):
        raise ConfigError(
            "--from goes on with the model of that run; of its sizes and layout only dropout can be set, and a smaller"
            " n_ctx"
        )
    for name, value in by_data.items():
        has_spare_rows = goes_on and name == "d_vocab" and chosen.sizes.d_vocab > value  # those that no token has
        given, needed = getattr(made.sizes, name), chosen.sizes.d_vocab if has_spare_rows else value
        if given != needed and name == "d_vocab":
            raise ConfigError(
                f"d_vocab is {given} but the tokenizer has {needed} tokens; use --vocab to fit another vocabulary"
            )
        if given != needed and not (goes_on and name == "n_types"):
            raise ConfigError(f"{name} is {given} but the data have {needed}; leave it out")


def training_config(
    preset: Preset, scale: Scale, budget: Budget, sizes: Sizes, *, positions: int = 0, kind: str = ""
) -> TrainingConfig:
    """How long and in which portions: what was asked for, or what the laws say.

    `positions` are those that an example costs, n_ctx where 0; `kind` is the optimizer where it was asked for.
    """
    steps = budget.steps or (0 if budget.minutes else scale.steps)
    minutes = 0.0 if steps else budget.minutes or DEFAULT_MINUTES
    examples = scale.examples(sizes.n_ctx)
    positions = examples * (positions or sizes.n_ctx)
    expected = nominal_updates(minutes, positions, sizes.d_model, sizes.n_layers, budget.pace)
    schedule = preset.schedule(steps, min(expected, scale.most_steps or expected))
    return TrainingConfig(
        batch_size=examples,
        accumulate=scale.accumulate,
        until_loss=budget.until_loss,
        minutes=minutes,
        optimizer=optimizer_config(preset, scale, steps, kind),
        schedule=dataclasses.replace(schedule, most_steps=0 if steps else scale.most_steps),
        teaching=scale.teaching,
    )


def _optimizer_kind(request: Request) -> str:
    """The kind of optimizer that was set; empty where none was, or none that there is."""
    kind = str(_settings_of(request, "training.optimizer").get("kind", ""))
    return kind if kind in OTHER_OPTIMIZERS or ":" in kind else ""


@dataclass(frozen=True, kw_only=True)
class _Parent:
    preset: str
    model: ModelConfig
    tokenizer: str


def _parent(request: Request, task: Task) -> _Parent | None:
    """What a run that another one starts from prescribes."""
    if not request.from_run:
        return None
    try:
        folder = RunFolder.open(request.from_run)
    except RunFolderError as error:
        given = typed(request.from_run)
        is_theirs = (Path(request.from_run) / "config.json").is_file()
        how = f"{given} is a Hugging Face folder; make a run of it first: qkv import {given} --out runs/theirs"
        raise RunFolderError(f"--from {how if is_theirs else error}") from None
    config = RunConfig.read(folder.config)
    if config.model.kind not in task.starts_from:
        raise ConfigError(
            f"--from {request.from_run} is a {config.model.kind}; --task {task.name} goes on from"
            f" {' or '.join(task.starts_from) or 'no other run'}"
        )
    for name in ("preset", "tokenizer", "vocab", "parameters"):
        if getattr(request, name) or name in _settings_of(request, "data"):
            raise ConfigError(f"--from goes on with the {name} of that run; leave --{name} out")
    if folder.best.is_file():
        check_weights(folder.best)
    if config.watched == "names":
        raise RunFolderError(
            f"--from {request.from_run} is a model of another program; qkv has not the code to train it"
        )
    tokenizer = folder.tokenizer
    if (config.imported or config.watched) and task.tokenizer and not tokenizer.is_file():
        raise RunFolderError(f"--from {request.from_run} came without a tokenizer, so it cannot read a text")
    return _Parent(
        preset=config.preset, model=config.model, tokenizer=str(tokenizer.absolute()) if tokenizer.is_file() else ""
    )


def _shortened(model: ModelConfig, n_ctx: object) -> ModelConfig:
    """The same with a shorter context, which a model without a row for each position can have.

    Raises ConfigError where it has such rows, or the context would be longer.
    """
    if n_ctx is None or str(n_ctx) == str(model.sizes.n_ctx) or not str(n_ctx).isdecimal():
        return model
    if model.layout.positions == "learned" or int(str(n_ctx)) > model.sizes.n_ctx:
        raise ConfigError(
            f"--from goes on with a model of n_ctx {model.sizes.n_ctx}; it can be made smaller where positions are not"
            f" learned, but this is {model.layout.positions} and {n_ctx} was given"
        )
    return dataclasses.replace(model, sizes=dataclasses.replace(model.sizes, n_ctx=int(str(n_ctx))))


def _absolute(tokenizer: str) -> str:
    """A tokenizer's file as a whole path; a kind as it is."""
    return str(Path(tokenizer).absolute()) if Path(tokenizer).suffix or "/" in tokenizer else tokenizer


def same_run(request: Request, config: RunConfig) -> None:
    """Make sure that what was typed beside --resume is what the run was made with.

    Raises ConfigError that names the option, the run's value and the one given.
    """
    kept: dict[str, tuple[object, object]] = {
        "source": (whole_source(request.source), config.data.source),
        "val": (whole_source(request.val or ""), config.data.val),
        "text-column": (request.text_column, config.data.text_column),
        "label-column": (request.label_column, config.data.label_column),
        "group-column": (request.group_column, config.data.group_column),
        "from": (request.from_run and str(Path(request.from_run).absolute()), config.from_run),
        "task": (request.task, config.task),
        "preset": (request.preset, config.preset),
        "seed": (request.seed, config.seed),
        "watch": (request.watch and watch_word(request.watch), config.watch),
        "tokenizer": (request.tokenizer and _absolute(request.tokenizer), config.data.tokenizer),
        "vocab": (request.vocab, config.data.vocab),
        "steps": (request.steps, config.training.schedule.steps),
        "minutes": (request.minutes, config.training.minutes),
        "until-loss": (request.until_loss, config.training.until_loss),
        "precision": (request.precision if request.precision != "auto" else None, config.machine.precision),
        "threads": (request.threads, config.machine.threads),
        "device": (request.device if request.device != "auto" else None, config.machine.device),
    }
    for name, (given, made) in kept.items():
        if given not in (None, "") and given != made:
            raise _other(f"--{name}", given, made)
    for name, value in request.set.items() if override(config, dict(request.set)) != config else ():
        if override(config, {name: value}) != config:
            raise _other(f"--set {name}", value, flat(config).get(_path_of(name), ""))
    if request.parameters and with_parameters(config.model, request.parameters) != config.model.resolved():
        made = n_parameters(config.model)
        if 10 * abs(made - request.parameters) > request.parameters:  # nearer ones had heads of another width
            raise _other("--parameters", request.parameters, made)
    if other := [change for change in request.changes if change not in config.changes]:
        raise _other("--change", other[0], config.changes)


def _other(option: str, given: object, made: object) -> ConfigError:
    """The error for an option beside --resume that is not the run's."""
    was = ", ".join(made) if isinstance(made, tuple | list) else made
    return ConfigError(
        f"{option} is {given}, but the run was made with {was or 'none'}; leave it out to resume that run"
    )
