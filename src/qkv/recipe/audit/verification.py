"""Is a run folder whole, and is it what it says it is: files, checkpoints, telemetry, and the training itself.

Each check is told apart from what could not be checked: a run that is not finished, whose data are gone, or that was
made elsewhere is not damaged, and is not called so. Nothing in the folder is changed.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from qkv.errors import RunFolderError
from qkv.folder.run_folder import FINAL_FILES, RunFolder, sha256_of
from qkv.inspection.answers.succession import oddities
from qkv.recipe.audit.replay import check_replay
from qkv.recipe.audit.telemetry import check_telemetry
from qkv.recipe.audit.verdict import Check, Fault, Verdict
from qkv.recipe.config import RunConfig
from qkv.recipe.interrupted import unclosed
from qkv.telemetry import Telemetry
from qkv.training.checkpoint import Standing, TrainingState, is_snapshot, most_snapshots, standing
from qkv.training.tensorfile import load_tensors
from qkv.words import many

UPDATES = 256
"""Updates that are made again from the start, where nothing else is asked for."""
_CELLS = 2000
"""Numbers of the telemetry that are computed again from snapshots."""
_NEEDED = ("config.toml", "model.safetensors", "telemetry.sqlite")
"""What every finished run has."""
_MANIFEST = "manifest.json"
_RESHAPED = "it is of another shape than at earlier steps"


def verify(
    path: str | Path, *, updates: int | None = UPDATES, cells: int = _CELLS, seed: int = 0, cache: Path | None = None
) -> Verdict:
    """Check everything that a run folder claims of itself.

    `updates` bounds how many are replayed from step 0 (0: none, None: all of them); the segment between the newest two
    checkpoints is replayed too. `seed` names which `cells` of the telemetry and of the weights are read again.

    Raises RunFolderError where there is no run, or one that is being trained at this moment.
    """
    folder = RunFolder.open(path)
    if folder.in_use():
        raise RunFolderError(f"{folder.path} is being written to; verify it when its training has stopped")
    try:
        config = RunConfig.read(folder.config, altered=True)
    except RunFolderError as error:
        fault = Fault(file="config.toml", sentence=str(error))
        checks = [_files(folder, watched=False)]
        checks.append(Check(name="checkpoints", compared=0, what="checkpoints", faults=(fault,)))
        return Verdict(run=folder.path, checks=tuple(checks))
    watched = bool(config.watched)
    found = _weights_of_watched(folder) if watched else standing(folder)
    ahead: list[Standing] = []
    if not watched and not folder.is_finished:  # a resume goes on from the newest whole one, and makes the rest again
        n = max((i for i, one in enumerate(found, 1) if one.is_whole), default=0)
        found, ahead = found[:n], found[n:]
    checks = [_files(folder, watched)]
    if config.history:
        checks += [_snapshots(config, found), _succession(folder)]
    else:
        checks.append(_watched(folder, found) if watched else _checkpoints(folder, config, found, ahead))
    checks.append(check_telemetry(folder, config, found, cells=cells, seed=seed))
    if found and updates != 0 and not watched and not config.history:
        checks.append(check_replay(folder, config, found, updates=updates, cache=cache))
    return Verdict(run=folder.path, checks=tuple(checks), is_unfinished=not folder.is_finished)


def _weights_of_watched(folder: RunFolder) -> list[Standing]:
    """The weights that were kept of a training in another program's loop: those of its start, and of its end."""
    found = []
    for step, path in folder.weights().items():
        try:
            load_tensors(path)
            trouble = ""
        except RunFolderError as error:
            trouble = str(error)
        found.append(Standing(step=step, path=path.parent, state=None, files={}, trouble=trouble))
    return found


def _watched(folder: RunFolder, found: list[Standing]) -> Check:
    """That they can be read and are of one model; whether they are finite was up to its loop."""
    faults = [
        Fault(file=_name(one, "model.safetensors"), step=one.step, sentence=one.trouble) for one in found if one.trouble
    ]
    faults += [fault for fault in _weights(found) if fault.sentence == _RESHAPED]
    words = [
        "it was trained by a program of its own, so there are no checkpoints to go on from and no update to replay"
    ]
    if (not found or found[0].step) and folder.is_finished:
        faults.append(Fault(file="checkpoints/step-00000000", step=0, sentence="this snapshot is missing"))
    elif not found:
        words.append("it ended before the weights of its start were kept")
    what = "weights that are kept of a watched training: readable, of one model"
    return Check(name="checkpoints", compared=len(found), what=what, faults=tuple(faults), unchecked=tuple(words))


def _snapshots(config: RunConfig, found: list[Standing]) -> Check:
    """Hashes and weights of what was kept of an imported history."""
    faults = [fault for one in found for fault in _one(one)] + _weights(found)
    words = () if config.history == "weights" else ("the weights of single steps were not kept (--keep measures)",)
    what = "snapshots: hashes, finite weights of one model"
    return Check(name="checkpoints", compared=len(found), what=what, faults=tuple(faults), unchecked=words)


def _succession(folder: RunFolder) -> Check:
    """Whether the steps of an imported history follow one another."""
    what = "steps: none equal, out of order or of another training"
    try:
        with Telemetry(folder.telemetry, altered=True) as telemetry:
            n, found = oddities(telemetry)
    except RunFolderError:  # said of the telemetry
        return Check(name="succession", compared=0, what=what)
    kept = folder.checkpoint_folders()
    where = {
        one.step: f"checkpoints/{kept[one.step].name}" if one.step in kept else "telemetry.sqlite" for one in found
    }
    faults = [Fault(file=where[f.step], step=f.step, sentence=f.sentence) for f in found if not f.is_hint]
    hints = tuple(one.sentence for one in found if one.is_hint)
    return Check(name="succession", compared=n, what=what, faults=tuple(faults), unchecked=hints)


def _files(folder: RunFolder, watched: bool) -> Check:
    """The hash of every final file."""
    check, fault = partial(Check, name="files", what="final files against their hashes"), partial(Fault, file=_MANIFEST)
    if not folder.is_finished and folder.is_import:
        words = "it is missing: the import was cut short; import it again"
        return check(compared=0, faults=(fault(sentence=words),))
    if not folder.is_finished:
        words = (
            f"{unclosed(folder)}, so nothing holds the hashes of its files; what it recorded can be read (qkv show)"
            if watched
            else "the run is not finished, so nothing holds the hashes of its final files yet (continue it with"
            " --resume)"
        )
        return check(compared=0, unchecked=(words,))
    try:
        damaged, manifest = folder.damaged_files(), folder.read_manifest(altered=True)
        files = manifest["files"]
    except (RunFolderError, OSError, KeyError) as error:
        return check(compared=0, faults=(fault(sentence=f"it cannot be used: {error}"),))
    faults: list[Fault] = []
    how_told = {"missing": "it is missing", "altered": "its bytes are not those that the manifest has the hash of"}
    if damaged.pop(_MANIFEST, None):
        faults.append(fault(sentence="its values are not those that it was written with"))
    elif not manifest.get("sha256"):
        faults.append(fault(sentence="it holds no hash of its own values: one was taken out, or an older qkv wrote it"))
    faults += [Fault(file=name, sentence=how_told[how]) for name, how in damaged.items()]
    for name in FINAL_FILES:
        if name not in files and name != "source.json" and ((folder.path / name).is_file() or name in _NEEDED):
            faults.append(Fault(file=name, sentence="the manifest has no hash of it"))
    return check(compared=len(files), faults=tuple(faults))


def _checkpoints(folder: RunFolder, config: RunConfig, found: list[Standing], ahead: list[Standing]) -> Check:
    """Hashes, weights, order and continuity of the checkpoints, and that the final weights are among them."""
    what = "checkpoints: hashes, finite weights, order, none left out"
    begins = f"step {found[-1].step}" if found else "step 0"
    words = f"{many(len(ahead), 'checkpoint')} after that cannot be used: a resume goes on from {begins}"
    torn = (words,) if ahead else ()
    if not found:
        came = f": it came from {config.imported}" if config.imported else ""
        words = f"there are no checkpoints to go on from{came}"
        return Check(name="checkpoints", compared=0, what=what, unchecked=(words, *torn))
    faults = [fault for one in found for fault in _one(one)]
    faults += _weights(found)
    states = [(one, one.state) for one in found if one.state is not None]
    for (before, earlier), (after, later) in zip(states, states[1:], strict=False):
        sentence = _disorder(earlier, later)
        if sentence:
            faults.append(Fault(file=_name(after), step=after.step, sentence=f"after step {before.step}, {sentence}"))
    faults += _missing(config, found) + _final(folder, found)
    return Check(name="checkpoints", compared=len(found), what=what, faults=tuple(faults), unchecked=torn)


def _name(one: Standing, file: str = "") -> str:
    place = f"checkpoints/{one.path.name}/" if one.path.parent.name == "checkpoints" else ""
    return (place + file).removesuffix("/")


def _one(one: Standing) -> list[Fault]:
    """What is wrong with a checkpoint taken alone."""
    if one.trouble not in ("", "thinned"):
        return [Fault(file=_name(one), step=one.step, sentence=one.trouble)]
    state = one.state
    if state is not None and state.step != one.step:
        return [Fault(file=_name(one, "state.json"), step=one.step, sentence=f"it is the state of step {state.step}")]
    return []


def _weights(found: list[Standing]) -> list[Fault]:
    """Weights that are not finite, or of other names and shapes than those of the checkpoint before."""
    faults: list[Fault] = []
    shapes: Mapping[str, tuple[int, ...]] | None = None
    for one in found:
        if not one.has_weights:
            continue
        weights = load_tensors(one.path / "model.safetensors")
        where: dict[str, Any] = {"file": _name(one, "model.safetensors"), "step": one.step}
        mine = {address: tuple(tensor.shape) for address, tensor in weights.items()}
        for address in sorted({address for address, _ in (shapes or mine).items() ^ mine.items()}):
            faults.append(Fault(**where, address=address, sentence=_RESHAPED))
        shapes = shapes or mine
        for address, tensor in weights.items():
            if not bool(torch.isfinite(tensor).all()):
                faults.append(Fault(**where, address=address, sentence="weights are not finite"))
    return faults


def _disorder(earlier: TrainingState, later: TrainingState) -> str:
    """What of a later state cannot follow an earlier one; empty where all can."""
    if later.tokens <= earlier.tokens:
        return f"no more tokens have been seen ({later.tokens} and {earlier.tokens})"
    if later.train_seconds < earlier.train_seconds:
        return f"less time has passed ({later.train_seconds:.3f} and {earlier.train_seconds:.3f} s)"
    if earlier.best_loss is not None and (later.best_loss is None or later.best_loss > earlier.best_loss):
        return f"the best loss is worse ({later.best_loss} and {earlier.best_loss})"
    return ""


def _missing(config: RunConfig, found: list[Standing]) -> list[Fault]:
    """Snapshots that a run keeps for good and that are not there."""
    there, newest = {one.step for one in found}, found[-1].step
    whole = next((one for one in found if one.has_weights), None)
    size = (whole.path / "model.safetensors").stat().st_size if whole else 0
    horizon = config.training.schedule.steps
    # Where the horizon was measured it may have moved while snapshots were thinned: then only the start is certain.
    wanted = [0, *(1 << power for power in range(newest.bit_length() if horizon else 0))]
    missing = [s for s in wanted if is_snapshot(s, horizon, most_snapshots(size)) and s not in there]
    return [
        Fault(file=f"checkpoints/step-{step:08d}", step=step, sentence="this snapshot is missing") for step in missing
    ]


def _final(folder: RunFolder, found: list[Standing]) -> list[Fault]:
    """That the weights of the run are those of the newest checkpoint, and of the best."""
    faults, newest = [], found[-1]
    if newest.trouble == "thinned":
        words = "the optimizer's state of the newest checkpoint is missing"
        faults.append(Fault(file=_name(newest, "optimizer.safetensors"), step=newest.step, sentence=words))
    if newest.state is None:
        return faults
    for path, step in ((folder.model, newest.step), (folder.best, newest.state.best_step)):
        if step < 0:
            continue
        source = next((one for one in found if one.step == step), None)
        if source is None or not source.files:
            words = f"the checkpoint of step {step}, whose weights it has, is missing or unreadable"
            faults.append(Fault(file=path.name, step=step, sentence=words))
            continue
        if not folder.is_finished:  # a resume links them again
            continue
        try:
            same = sha256_of(path) == source.files.get("model.safetensors")
        except OSError:
            faults.append(Fault(file=path.name, step=step, sentence="it is missing"))
            continue
        if not same:
            faults.append(Fault(file=path.name, step=step, sentence=f"its bytes are not the weights of step {step}"))
    return faults
