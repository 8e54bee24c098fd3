"""The Python API: `train` a model, `load` a run, and question the `Run` (`qkv.run`).

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

from qkv import __version__, interop, recipe
from qkv.changes import freeze_changes
from qkv.config import from_dict
from qkv.errors import ConfigError, RunFolderError, several
from qkv.folder.hashes import cache_folder
from qkv.folder.run_folder import RunFolder
from qkv.folder.staging import check_elsewhere
from qkv.folder.verified import damage
from qkv.interop.folders import ADAPTER
from qkv.interop.formats.adapters import base_of
from qkv.interop.live import Attention, attention  # noqa: F401 - a part of the API
from qkv.jsontypes import JsonObject
from qkv.othernames import unknown_setting
from qkv.run import Run
from qkv.tokenizers.tokenizer import Tokenizer, load_tokenizer
from qkv.training.distributed.started import is_first_process
from qkv.training.record import EvaluationRecord, Event, StepRecord
from qkv.training.waiting import watching_cores

if TYPE_CHECKING:
    from qkv.data.sources.receipt import Receipt
    from qkv.recipe.forecast import Forecast
    from qkv.studies.designed import Design
    from qkv.studies.engine.runner import Made


class TrainOptions(TypedDict, total=False):
    """The keywords of `train` and `plan`. qkv chooses those that are left out or None."""

    task: str | None
    """What the model is trained for: causal, masked, classify, translate, image, ..."""
    preset: str | None
    """The kind of model: a name in `qkv.presets`."""
    from_run: str | None
    """The folder of a run to start from."""
    parameters: int | None
    """About how many the model has."""
    extend: int | None
    """How many updates more the finished run `from_run` is trained, with its optimizer's state."""
    steps: int | None
    """The budget in updates."""
    minutes: float | None
    """The budget in minutes of wall time; an error together with `steps`."""
    until_loss: float | None
    """Stop at this validation loss, in nats."""
    seed: int | None
    """The seed of everything that is random."""
    set: Mapping[str, object] | None
    """Single settings by name: `{"d_model": 128}`."""
    change: Sequence[str]
    """Changes in the change language: `["L0.W_Q=identity"]`."""
    freeze: Sequence[str]
    """Selectors of the matrices to freeze."""
    only: Sequence[str]
    """Selectors of the only matrices to train."""
    val: str | None
    """A source to validate on, instead of a part of `source`."""
    tokenizer: str | None
    """The kind of tokenizer to fit, or a file of one."""
    vocab: int | None
    """The size of its vocabulary."""
    text_column: str | None
    """The column of a table that holds the texts."""
    label_column: str | None
    """The column of a table that holds the labels."""
    group_column: str | None
    """The column of a labeled table whose equal values stay on one side of the split."""
    watch: str | None
    """What is recorded: "off", "light", "full", or a share of the time such as "2%"."""
    device: str | None
    """cpu, cuda or mps."""
    precision: str | None
    """fp32 or bf16."""
    threads: int | None
    """The number of processor threads."""
    nproc: int | None
    """The number of processes, as started by torchrun."""
    shard: bool | None
    """Whether weights and optimizer state are split among the processes."""
    on_spike: str | None
    """What to do when the loss jumps up: "stop", "rollback" or "ignore"."""
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
    `TrainOptions`: task, preset, steps, minutes, freeze, ... With `resume`, `out` names the run to continue. `log` also
    sends telemetry to a tracker (tensorboard, wandb or trackio). `progress` is called with each step, `say` with
    sentences.

    A script that torchrun starts in several processes makes this call in each; only the first one records and writes.
    Raises UserError if the request cannot be met (then nothing is written), RunError if the training broke off.
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
        with watching_cores(run.config.machine.threads):
            run.report()
    return run


def plan(
    source: str | Path = "", *, tflops: float = 0.0, gigabytes: float = 0.0, **options: Unpack[TrainOptions]
) -> "Forecast":
    """The memory and time of each process that `train` would take with the same arguments. Nothing is trained.

    Time is measured on this machine, or computed from `tflops` and `gigabytes` per second of each process.
    """
    from qkv.recipe import forecast

    return forecast.plan(_request(source, options), forecast.Place(tflops, gigabytes), cache_folder())


def receipt(source: str | Path = "", **options: Unpack[TrainOptions]) -> "Receipt":
    """What `train` with the same arguments would read of `source`, set aside and leave out; nothing is trained."""
    return recipe.resolve(_request(source, options), cache_folder())[1].receipt


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
    """Open the run in a folder, with its best or last weights, or a Hugging Face folder as a run.

    A Hugging Face folder is imported once, into `cache_folder()`; `import_checkpoint` imports it where you want it.

    Raises RunFolderError if there is no run (`model` raises it if the run has no weights yet), SourceError for a
    checkpoint that cannot be read.
    """
    if weights not in ("best", "last"):
        raise ConfigError(f"weights is {weights!r}; expected best or last")
    folder = Path(path)
    if not (folder / "config.toml").is_file() and any(
        (folder / name).is_file() for name in ("config.json", ADAPTER[0])
    ):
        return Run(RunFolder.open(_cached_import(folder)), weights, cache_folder())
    return Run(RunFolder.open(path), weights, cache_folder())


def import_checkpoint(
    source: str | Path, out: str | Path, *, base: str = "", say: Callable[[str], None] = lambda sentence: None
) -> "Run":
    """Read a Hugging Face folder (config.json, safetensors, tokenizer files) into a new run folder.

    A LoRA adapter is merged into the model that it names, or the one in the folder `base`.
    `say` is called with what was left out or differs. Raises SourceError for a checkpoint that cannot be read,
    RunFolderError if `out` already exists.
    """
    from qkv.interop import read_checkpoint

    check_elsewhere(Path(out))
    RunFolder(Path(out)).check_vacant()
    imported = read_checkpoint(source, base=base)
    for note in imported.notes:
        say(note)
    return load(recipe.import_run(imported, Path(out)))


def import_history(
    source: str | Path,
    out: str | Path,
    *,
    keep: str = "weights",
    text: str | Path = "",
    say: Callable[[str], None] = lambda sentence: None,
) -> "Run":
    """Read the training history of a model into one new run: a folder of step folders, or `hf:ORG/NAME@step*`.

    `keep` is `weights` (a snapshot at each step) or `measures`. On `text`, a file, attention is measured at each step.
    `say` is called with what was left out or differs. Raises SourceError for steps that cannot be read or are not of
    one model, RunFolderError if `out` already exists.
    """
    check_elsewhere(Path(out))
    return load(recipe.import_history(str(source), Path(out), keep=keep, text=str(text), cache=cache_folder(), say=say))


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
    log: Callable[[int], Mapping[str, object]] | None = None,
) -> recipe.Watcher:
    """Record a training that runs in your own loop. The run folder has the same telemetry as one of `train`.

        watcher = qkv.watch(model, optimizer, "runs/mine")
        ...                       # your loop, unchanged: the optimizer's own hooks report its steps
        watcher.close()           # or let the program end

    Models of transformers that `qkv import` reads, nanoGPT's and torch.nn.TransformerEncoder are known. For another,
    give `n_heads` and `names`, a table from its parameters to addresses ("blocks.{L}.qkv.weight": "L{L}.W_Q, L{L}.W_K,
    L{L}.W_V"). `level` is light or full. `tokenizer` is a fast tokenizer of transformers, or a file.
    `log(step)` gives numbers of your own by name, at each step that is measured; they appear beside ours.

    Raises ConfigError for an unknown model or names that do not fit, RunFolderError if `out` already exists.
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
            log=log,
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
    """Check that a run folder is complete and that its weights follow from its training. Changes nothing.

    Repeats at most `updates` steps from step 0 (0: none, None: all), and those between the newest two checkpoints.
    `seed` selects the recorded numbers that are checked. See `qkv.recipe.audit.verification`.

    Raises RunFolderError if there is no run, or if it is being trained.
    """
    return recipe.verify(path, updates=updates, seed=seed, cache=cache_folder())


def _cached_import(folder: Path) -> Path:
    """The run made of a Hugging Face folder, by place, size and time of its files, its base's and those of our code."""
    places = [folder, *([base] if (base := base_of(folder)) else [])]
    files = [p for place in places for p in place.iterdir() if p.is_file()]
    files += Path(interop.__file__).parent.rglob("*.py")  # another version may read the same files differently
    stamps = [f"{p} {(s := p.stat()).st_size} {s.st_mtime_ns}" for p in sorted(files)]
    key = hashlib.sha256("\n".join([__version__, str(folder.resolve()), *stamps]).encode()).hexdigest()[:16]
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
    name: "str | Path | Design",
    source: str | Path = "",
    *,
    seeds: int | None = None,
    minutes: float | None = None,
    quick: bool = False,
    margin: float | None = None,
    out: str | Path = "runs",
    on: str = "local",
    ladder: bool = False,
    sizes: Sequence[tuple[int, int]] = (),
    progress: "Callable[[Made], None]" = lambda made: None,
    say: Callable[[str], None] = lambda sentence: None,
    started: float | None = None,
) -> JsonObject:
    """Answer a question by experiment on `source`; returns the verdict that `qkv study --json` prints.

    `name` is a built-in question, the path of a `.toml` file with your own question, or a `Design`; these two name
    their source.

    Trains one model per core at a time, `on` local, ray or ray://HOST:PORT. Its folder in `out` is named by a hash of
    the design. So the same call continues an unfinished study, and more `seeds` add replicates to a finished one.
    `margin` is the largest effect that would not matter. With `ladder` the main effect is followed over `sizes`
    (d_model, layers), and the result is what `qkv study --ladder --json` prints. `progress` is called with each
    training, `say` with sentences.

    A script that torchrun starts in several processes makes this call in each; only the first one records and writes.
    Raises UserError if the request cannot be met (then nothing is written).
    """
    from qkv.studies.engine.runner import Told, run_study
    from qkv.studies.ladder.climb import run_ladder
    from qkv.studies.ladder.plan import SIZES
    from qkv.views.study.ladder import write_ladder_page
    from qkv.views.study.page import write_study_page

    if ladder and quick:
        raise ConfigError("--ladder and --quick exclude each other; type --minutes for a shorter ladder")
    if sizes and not ladder:
        raise ConfigError("--sizes are those of a ladder; type --ladder as well, or leave them out")
    asked_for = str(name) if isinstance(name, Path) else name
    same = {"within": Path(out), "cache": cache_folder(), "workers": torch.get_num_threads(), "on": on}
    asked = {"seeds": seeds, "minutes": minutes, "margin": margin}
    told = Told(progress=progress, say=say, started=started or 0.0)
    if ladder:
        found = run_ladder(asked_for, str(source), **asked, **same, told=told, sizes=sizes or SIZES)
        write_ladder_page(Path(found["run"]))
        return found
    verdict = run_study(asked_for, str(source), quick=quick, **asked, **same, told=told)
    write_study_page(Path(verdict["run"]))
    return verdict


def trial(
    new: str | Path,
    against: str | Path,
    *,
    max_seeds: int = 40,
    gain: float = 0.01,
    ledger: str | Path | None = None,
    say: Callable[[str], None] = lambda sentence: None,
) -> JsonObject:
    """Is the training in `new` better than the one in `against`? Returns what `qkv trial --json` prints.

    Both are files in the format of a run's config.toml, with equal budgets. Pairs that share a seed are trained until
    `new` is shown to be better, or not better by `gain`, at most `max_seeds` of them. `ledger` keeps the tries and
    bounds the chance of a false keep over all of them (by default beside `against`). `say` is called with sentences.

    Raises UserError if the two cannot be compared (then nothing is trained).
    """
    from qkv.studies.gate.trial import trial as judged

    place = None if ledger is None else Path(ledger)
    return judged(Path(new), Path(against), max_seeds=max_seeds, gain=gain, ledger=place, cache=cache_folder(), say=say)
