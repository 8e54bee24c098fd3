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
from typing import TYPE_CHECKING, Any

import torch

from qkv import recipe
from qkv.changes import freeze_changes
from qkv.config import from_dict
from qkv.errors import ConfigError, RunFolderError, several
from qkv.folder.hashes import cache_folder
from qkv.folder.run_folder import RunFolder
from qkv.folder.staging import check_elsewhere
from qkv.folder.verified import damage
from qkv.interop.live import Attention, attention
from qkv.othernames import unknown_setting
from qkv.run import Run
from qkv.tokenizers.tokenizer import Tokenizer, load_tokenizer
from qkv.training.distributed.ranks import is_first_process

if TYPE_CHECKING:
    from qkv.recipe.forecast import Forecast

__all__ = [
    "Attention",
    "Run",
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


def train(
    source: str | Path = "",
    *,
    out: str | Path | None = None,
    set: Mapping[str, Any] | None = None,
    change: Sequence[str] = (),
    freeze: Sequence[str] = (),
    only: Sequence[str] = (),
    resume: bool = False,
    progress: Callable[[Any], None] = lambda told: None,
    say: Callable[[str], None] = lambda sentence: None,
    started: float | None = None,
    log: str = "",
    **request: Any,
) -> "Run":
    """Train a model on `source` and return the finished run.

    `source` is a text file, folder or table; empty is the text inside your own Python. Further keywords are those of
    `qkv.recipe.Request`: task, preset, from_run, parameters, steps, minutes, until_loss, seed, val, tokenizer, vocab,
    text_column, label_column, watch ("off", "light", "full", "2%"), device, precision, threads, shard, on_spike, report
    (False: no random-label control either). `set` overrides single settings (`{"d_model": 128}`), `change` takes
    changes in the change language, `freeze` and `only` selectors. With `resume`, `out` names the run to go on with.
    `log` sends telemetry on as well (tensorboard, wandb or trackio). `progress` is called with each step, `say` with
    sentences.

    A script that torchrun starts in several processes makes this call in each; the first one watches and writes.
    Raises UserError for what cannot be done as asked (nothing is made then), RunError where the run broke off.
    """
    listening = recipe.Listening(progress=progress, say=say, started=started or time.monotonic(), log=log)
    asked = _request(source, set, change, freeze, only, **request)
    if resume:
        if out is None:
            raise ConfigError("--resume needs --out RUN: the folder of the run to go on with")
        path = recipe.resume(asked, out=Path(out), listening=listening, cache=cache_folder())
    else:
        path = recipe.train(asked, out=Path(out) if out else None, listening=listening, cache=cache_folder())
    run = load(path)
    wanted = run.config.report if asked.report is None else asked.report
    if wanted and is_first_process() and not run.folder.report.is_file():
        say("writing the report")
        run.report()
    return run


def plan(source: str | Path = "", *, tflops: float = 0.0, gigabytes: float = 0.0, **asked: Any) -> "Forecast":
    """What `train` with the same arguments would take, memory and time of each process; nothing is trained.

    Time is measured here, or follows from the 10^12 operations and the GB a second of each process.
    """
    from qkv.recipe import forecast

    return forecast.plan(_request(source, **asked), forecast.Place(tflops, gigabytes), cache_folder())


def _request(
    source: str | Path,
    set: Mapping[str, Any] | None = None,
    change: Sequence[str] = (),
    freeze: Sequence[str] = (),
    only: Sequence[str] = (),
    **request: Any,
) -> recipe.Request:
    """The arguments of `train` and `plan` as one object. Raises ConfigError for one that there is not."""
    names = [f.name for f in dataclasses.fields(recipe.Request) if f.name not in ("source", "set", "changes")]
    for name in (name for name in request if name not in names):
        if setting := recipe.setting_named(name):
            raise ConfigError(f"{name} is a setting; give it as set={{{setting!r}: {request[name]!r}}}")
        raise ConfigError(unknown_setting("option of qkv.train", name, names))
    frozen = freeze_changes(several("freeze", freeze), several("only", only))
    changes = (*several("change", change), *map(str, frozen))
    asked = from_dict(recipe.Request, request)  # a value of another kind is refused before anything is made
    return dataclasses.replace(asked, source=str(source), set=dict(set or {}), changes=changes)


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
    model: Any,
    optimizer: Any,
    out: str | Path | None = None,
    *,
    level: str = "light",
    tokenizer: Any = None,
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
    optimizers = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
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


def _tokenizer(given: Any) -> Tokenizer:
    """Ours, of a fast tokenizer of transformers, a tokenizer of ours, or a file or folder."""
    if isinstance(given, Tokenizer):
        return given
    inside = getattr(given, "backend_tokenizer", None)
    return Tokenizer.from_json(inside.to_str()) if inside is not None else load_tokenizer(Path(given))


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
    progress: Callable[[Any], None] = lambda made: None,
    say: Callable[[str], None] = lambda sentence: None,
    started: float | None = None,
) -> dict[str, Any]:
    """Answer a question by experiment on `source`; returns the verdict that `qkv study --json` prints.

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
