"""The Python face: `train` a model, `load` a run, and ask the `Run` (`qkv.run`).

run = qkv.train("my.txt", freeze=["W_E"], minutes=3)
run.loss, run.predict(["the cat"]), run.history("L*.W_Q", "drift"), run.matrix("L0.H1.OV")
"""

import dataclasses
import hashlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import torch
from torch import nn

from qkv import recipe
from qkv.changes import freeze_changes
from qkv.config import from_dict
from qkv.errors import ConfigError, RunFolderError, several
from qkv.folder.hashes import cache_folder
from qkv.folder.run_folder import RunFolder
from qkv.folder.staging import check_elsewhere
from qkv.folder.verified import damage
from qkv.interop.live import Attention, attention
from qkv.jsontypes import JsonObject
from qkv.othernames import unknown_setting
from qkv.run import Run
from qkv.tokenizers.tokenizer import Tokenizer, load_tokenizer
from qkv.training.distributed.ranks import is_first_process
from qkv.training.record import EvaluationRecord, Event, StepRecord

if TYPE_CHECKING:
    from qkv.recipe.forecast import Forecast
    from qkv.studies.engine.runner import Made

__all__ = [
    "Attention",
    "Run",
    "TrainOptions",
    "attention",
    "cache_folder",
    "import_checkpoint",
    "load",
    "plan",
    "study",
    "train",
    "verify",
    "watch",
]


class TrainOptions(TypedDict, total=False):
    """The keywords of `train` and `plan`; what is left out or None is chosen for you."""

    task: str | None
    """What is learned: causal, masked, classify, translate, image, ..."""
    preset: str | None
    """The kind of model, by a name of `qkv.presets`."""
    from_run: str | None
    """The folder of a run to start from."""
    parameters: int | None
    """About how many the model has."""
    extend: int | None
    """How many updates more the finished run `from_run` is trained, with its optimizer's state."""
    steps: int | None
    """The budget in updates."""
    minutes: float | None
    """The budget in wall time; with `steps` an error."""
    until_loss: float | None
    """End at this validation loss, in nats."""
    seed: int | None
    """Names every draw."""
    set: Mapping[str, object] | None
    """Single settings by name: `{"d_model": 128}`."""
    change: Sequence[str]
    """Changes in the change language: `["L0.W_Q=identity"]`."""
    freeze: Sequence[str]
    """Selectors of what is frozen."""
    only: Sequence[str]
    """Selectors of what alone is trained."""
    val: str | None
    """A source to validate on, instead of a part of `source`."""
    tokenizer: str | None
    """The kind that is fitted, or a file."""
    vocab: int | None
    """How many tokens it has."""
    text_column: str | None
    """Of a table."""
    label_column: str | None
    """Of a table."""
    watch: str | None
    """What is recorded: "off", "light", "full", or a share of the time such as "2%"."""
    device: str | None
    """cpu, cuda or mps."""
    precision: str | None
    """fp32 or bf16."""
    threads: int | None
    """Of the processor."""
    nproc: int | None
    """Processes, as torchrun has started them."""
    shard: bool | None
    """Whether processes share out weights and optimizer state."""
    on_spike: str | None
    """When the loss jumps up: "stop", "rollback" or "ignore"."""
    report: bool | None
    """False: no report, and no random-label control either."""


def train(
    source: str | Path = "",
    *,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Callable[[StepRecord | EvaluationRecord | Event], None] = lambda told: None,
    say: Callable[[str], None] = lambda sentence: None,
    started: float | None = None,
    log: str = "",
    **options: Unpack[TrainOptions],
) -> "Run":
    """Train a model on `source` and return the finished run.

    `source` is a text file, folder or table; empty is the text inside your own Python. Further keywords are those of
    `TrainOptions`: task, preset, steps, minutes, freeze, ... With `resume`, `out` names the run to go on with. `log`
    sends telemetry on as well (tensorboard, wandb or trackio). `progress` is called with each step, `say` with
    sentences.

    A script that torchrun starts in several processes makes this call in each; the first one watches and writes.
    Raises UserError for what cannot be done as asked (nothing is made then), RunError where the run broke off.
    """
    listening = recipe.Listening(progress=progress, say=say, started=started or time.monotonic(), log=log)
    asked = _request(source, options)
    if resume:
        if out is None:
            raise ConfigError("--resume needs --out RUN: the folder of the run to go on with")
        path = recipe.resume(asked, out=Path(out), listening=listening, cache=cache_folder())
    elif asked.extend is not None:
        path = recipe.extend(asked, out=Path(out) if out else None, listening=listening, cache=cache_folder())
    else:
        path = recipe.train(asked, out=Path(out) if out else None, listening=listening, cache=cache_folder())
    run = load(path)
    wanted = run.config.report if asked.report is None else asked.report
    if wanted and is_first_process() and not run.folder.report.is_file():
        say("writing the report")
        run.report()
    return run


def plan(
    source: str | Path = "", *, tflops: float = 0.0, gigabytes: float = 0.0, **options: Unpack[TrainOptions]
) -> "Forecast":
    """What `train` with the same arguments would take, memory and time of each process; nothing is trained.

    Time is measured here, or follows from the 10^12 operations and the GB a second of each process.
    """
    from qkv.recipe import forecast

    return forecast.plan(_request(source, options), forecast.Place(tflops, gigabytes), cache_folder())


def _request(source: str | Path, options: TrainOptions) -> recipe.Request:
    """The arguments of `train` and `plan` as one object. Raises ConfigError for one that there is not."""
    given: JsonObject = {**options}
    chosen, change, freeze, only = (given.pop(name, ()) for name in ("set", "change", "freeze", "only"))
    names = [f.name for f in dataclasses.fields(recipe.Request) if f.name not in ("source", "set", "changes")]
    for name in (name for name in given if name not in names):
        if setting := recipe.setting_named(name):
            raise ConfigError(f"{name} is a setting; give it as set={{{setting!r}: {given[name]!r}}}")
        raise ConfigError(unknown_setting("option of qkv.train", name, names))
    frozen = freeze_changes(several("freeze", freeze), several("only", only))
    changes = (*several("change", change), *map(str, frozen))
    asked = from_dict(recipe.Request, given)  # a value of another kind is refused before anything is made
    return dataclasses.replace(asked, source=str(source), set=dict(chosen or {}), changes=changes)


def load(path: str | Path, *, weights: str = "best") -> "Run":
    """The run in a folder, with its best weights or its last; or a Hugging Face folder, as a run.

    Of a Hugging Face folder a run is made in `cache_folder()`, once; `import_checkpoint` makes one where you want it.

    Raises RunFolderError where there is no run (one without weights yet raises it when asked for its `model`),
    SourceError for a checkpoint that cannot be read as it stands.
    """
    if weights not in ("best", "last"):
        raise ConfigError(f"weights is {weights!r}; expected best or last")
    folder = Path(path)
    if not (folder / "config.toml").is_file() and (folder / "config.json").is_file():
        return Run(RunFolder.open(_cached_import(folder)), weights, cache_folder())
    return Run(RunFolder.open(path), weights, cache_folder())


def import_checkpoint(
    source: str | Path, out: str | Path, *, say: Callable[[str], None] = lambda sentence: None
) -> "Run":
    """Read a Hugging Face folder (config.json, safetensors, tokenizer files) into a new run folder.

    `say` is called with what was left out or is different here. Raises SourceError for a checkpoint that cannot be read
    as it stands, RunFolderError where the place is taken.
    """
    from qkv.interop import read_checkpoint

    check_elsewhere(Path(out))
    RunFolder(Path(out)).check_vacant()
    imported = read_checkpoint(source)
    for note in imported.notes:
        say(note)
    return load(recipe.import_run(imported, Path(out)))


def watch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    out: str | Path | None = None,
    *,
    level: str = "light",
    tokenizer: object = None,
    names: Mapping[str, str] | None = None,
    n_heads: int = 0,
    n_kv_heads: int = 0,
) -> recipe.Watcher:
    """Record a training that runs in your own loop: a run folder with the telemetry of our own trainer.

        watcher = qkv.watch(model, optimizer, "runs/mine")
        ...                       # your loop, as it is: the optimizer's steps are seen by its own hooks
        watcher.close()           # or let the program end

    Known are models of transformers that `qkv import` reads, nanoGPT's, and torch.nn.TransformerEncoder; for another
    give `names`, a table from its parameters to addresses ("blocks.{L}.qkv.weight": "L{L}.W_Q, L{L}.W_K, L{L}.W_V"),
    and `n_heads`. `level` is light or full. `tokenizer` is a fast tokenizer of transformers, or a file.

    Raises ConfigError for a model that is not known or names that do not fit, RunFolderError where `out` is taken.
    """
    from qkv.interop.mirror import mirror_of

    mirror = mirror_of(model, names=names, n_heads=n_heads, n_kv_heads=n_kv_heads)
    optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
    folder = RunFolder.create(Path(out or recipe.next_folder("watched")).absolute())  # the loop may go elsewhere
    try:
        return recipe.Watcher(
            mirror,
            model,
            optimizers,
            folder,
            level=level,
            tokenizer=None if tokenizer is None else _tokenizer(tokenizer),
        )
    except BaseException as error:
        folder.__exit__(type(error), error, None)
        raise


def _tokenizer(given: object) -> Tokenizer:
    """Ours, of a fast tokenizer of transformers, a tokenizer of ours, or a file or folder."""
    if isinstance(given, Tokenizer):
        return given
    inside = getattr(given, "backend_tokenizer", None)
    return Tokenizer.from_json(inside.to_str()) if inside is not None else load_tokenizer(Path(str(given)))


def verify(path: str | Path, *, updates: int | None = 256, seed: int = 0) -> recipe.Verdict:
    """Check that a run folder is whole and says the truth about its training; nothing in it is changed.

    At most `updates` from step 0 are made again (0: none, None: all), and those between the newest two checkpoints;
    `seed` names the numbers that are read again. See `qkv.recipe.audit.verification`.

    Raises RunFolderError where there is no run, or one that is being trained at this moment.
    """
    return recipe.verify(path, updates=updates, seed=seed, cache=cache_folder())


def _cached_import(folder: Path) -> Path:
    """The run made of a Hugging Face folder, by its place and its files' sizes and times."""
    files = sorted(p for p in folder.iterdir() if p.is_file())
    stamps = [f"{p.name} {(s := p.stat()).st_size} {s.st_mtime_ns}" for p in files]
    key = hashlib.sha256("\n".join([str(folder.resolve()), *stamps]).encode()).hexdigest()[:16]
    place = cache_folder() / "imported" / key
    if not RunFolder(place).is_finished or damage(RunFolder(place)):
        if RunFolder(place).in_use():
            raise RunFolderError(f"another qkv is reading {folder} in at this moment; type the same when it has ended")
        shutil.rmtree(place, ignore_errors=True)  # damaged, or what a process left that was killed
        try:
            import_checkpoint(folder, place)
        except RunFolderError:
            if not RunFolder(place).is_finished:  # another process was as quick
                raise
    return place


def study(
    name: str,
    source: str | Path = "",
    *,
    seeds: int | None = None,
    minutes: float | None = None,
    quick: bool = False,
    margin: float | None = None,
    out: str | Path = "runs",
    on: str = "local",
    progress: "Callable[[Made], None]" = lambda made: None,
    say: Callable[[str], None] = lambda sentence: None,
    started: float | None = None,
) -> JsonObject:
    """Answer a question by experiment on `source`; returns the verdict that `qkv study --json` prints.

    `name` is that of a built-in question, or the path of a file (`.toml`) with one of your own, which names its source.

    Trains one model per core at a time, `on` local, ray or ray://HOST:PORT. Its folder lies in `out` and is named by
    the hash of what is done, so the same call goes on with what is missing, and more `seeds` add to what is there.
    `margin` is the largest effect that would not matter. `progress` is called with each training, `say` with sentences.

    A script that torchrun starts in several processes makes this call in each; the first one watches and writes.
    Raises UserError for what cannot be done as asked (nothing is made then).
    """
    from qkv.studies import Told, run_study
    from qkv.views.study.page import write_study_page

    verdict = run_study(
        name,
        str(source),
        seeds=seeds,
        minutes=minutes,
        quick=quick,
        margin=margin,
        within=Path(out),
        cache=cache_folder(),
        workers=torch.get_num_threads(),
        on=on,
        told=Told(progress=progress, say=say, started=started or 0.0),
    )
    write_study_page(Path(verdict["run"]))
    return verdict
