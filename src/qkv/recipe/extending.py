"""A finished run trained longer, in a folder of its own: from its last checkpoint, with the state of its optimizer.

The new folder begins as a copy of all that the run can go on from: checkpoints, telemetry, tokenizer. Then it is a run
like one that was interrupted, so what is killed goes on with `--resume`. The rates of the new schedule are those of a
training to the new end; the updates that are made already stay as they were made.
"""

import dataclasses
import shutil
from pathlib import Path

from qkv.config import dump_toml, override, to_dict
from qkv.errors import ConfigError, RunFolderError, typed
from qkv.folder.run_folder import RunFolder
from qkv.folder.staging import check_elsewhere, staged
from qkv.folder.verified import check_file
from qkv.recipe.config import RunConfig
from qkv.recipe.request import Request, same_run
from qkv.recipe.training import Listening, next_folder, resume
from qkv.telemetry import Store
from qkv.training.checkpoint import Checkpoint, latest_valid, reopen
from qkv.training.config import ScheduleConfig
from qkv.training.schedules import decay_start, lr_scale
from qkv.words import many, percent

__all__ = ["extend"]

_KEPT = ("tokenizer.json", "tokenizer.source.json", "teachers.safetensors", "telemetry.sqlite")
"""What a run keeps beside its checkpoints that a training goes on with."""


def extend(request: Request, *, out: Path | None, listening: Listening, cache: Path | None) -> Path:
    """Train the run `request.from_run` by `request.extend` updates more, in a new folder; returns it.

    Raises UserError before anything is made: for a run that is not finished, was not trained here or is damaged, and
    for an option that differs from the run's; else as `resume`.
    """
    assert request.extend is not None and request.from_run is not None
    parent = RunFolder.open(request.from_run)
    asked = dataclasses.replace(request, from_run=None, extend=None)
    config, found = _extendable(parent, asked)
    made = found.state.step
    longer = {"training.schedule.steps": made + request.extend, "training.schedule.continues": made}
    longer |= {"training.schedule.most_steps": 0, "training.minutes": 0.0, "training.until_loss": 0.0}
    config = override(config, longer)
    out = out or next_folder(parent.path.name)
    check_elsewhere(out)
    RunFolder(out).check_vacant()
    with staged(out) as place:
        _copied(parent, RunFolder(place), config)
        RunFolder(out).make_room()
    listening.say(f"It continues {parent.path} from step {made:,}, with the state of its optimizer. {schedule(config)}")
    return resume(Request(nproc=request.nproc), out=out, listening=listening, cache=cache)


def _extendable(parent: RunFolder, asked: Request) -> tuple[RunConfig, Checkpoint]:
    """The configuration of a run that can be trained longer, and its newest checkpoint."""
    run, config = typed(parent.path), RunConfig.read(parent.config)
    if config.imported or config.watched:
        raise RunFolderError(
            f"{parent.path} was trained elsewhere and keeps no state of an optimizer; to train it further: qkv train"
            f" SOURCE --from {run} --out NEW"
        )
    if not parent.is_finished:
        raise RunFolderError(f"{parent.path} is not finished; go on with it first: qkv train --out {run} --resume")
    if asked.nproc not in (None, 1):
        raise ConfigError("--extend begins in one process; stop it and go on with --resume --nproc N for more")
    same_run(asked, config)
    for name in _KEPT:
        check_file(parent.path / name)
    found, damaged = latest_valid(parent)
    if found is None or damaged:
        raise RunFolderError(f"{parent.path} cannot be extended: {damaged[0] if damaged else 'it has no checkpoint'}")
    return config, found


def _copied(parent: RunFolder, folder: RunFolder, config: RunConfig) -> None:
    """Everything that a training goes on with, in a folder that nobody has yet."""
    folder.write("config.toml", dump_toml(to_dict(config)))
    for name in (*_KEPT, "source.json"):
        if (parent.path / name).is_file():
            shutil.copyfile(parent.path / name, folder.path / name)
    for step, path in parent.checkpoint_folders().items():
        place = folder.checkpoints / f"step-{step:08d}"
        place.mkdir(parents=True)
        for file in path.iterdir():
            if not parent.why_foreign(file):
                shutil.copyfile(file, place / file.name)
    found, _ = latest_valid(folder)
    assert found is not None, "the run's own was whole"
    reopen(found)
    with Store(folder.telemetry) as store:
        store.drop_after(-1, arm=1)  # the control is made again, as long as the new training asks
        store.set_fact("extends", {"run": str(parent.path.absolute()), "step": found.state.step})


def schedule(config: RunConfig) -> str:
    """The schedule of a run that continues another, in a sentence."""
    plan: ScheduleConfig = config.training.schedule
    first, last = plan.continues, plan.steps
    falls, floor = max(first, decay_start(last, plan)), f"{percent(plan.floor)} of it" if plan.floor else "0"
    now = lr_scale(first, plan)
    begins = "is back at its peak" if now == 1 else f"is {percent(now)} of its peak"
    holds = f", stays there until step {falls:,}" if falls > first else ""
    return (
        f"The new schedule has {many(last - first, 'step')} more, to step {last:,}: the learning rate {begins}{holds}"
        f" and falls to {floor} at the end."
    )
