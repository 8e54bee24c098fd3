"""What to say of a run that `qkv.watch` recorded in another program, which ended (killed, say) before it was closed."""

import contextlib

from qkv.errors import RunFolderError, typed
from qkv.folder.run_folder import RunFolder
from qkv.recipe.config import RunConfig
from qkv.telemetry import Telemetry


def unclosed(folder: RunFolder) -> str:
    """What it is, as the beginning of a sentence."""
    step = 0
    with contextlib.suppress(RunFolderError), Telemetry(folder.telemetry) as telemetry:
        step = max(telemetry.steps().step.tolist(), default=0)
    return (
        f"{folder.path} was trained by a program of its own, watched by qkv.watch, which ended without closing it; what"
        f" it recorded reaches step {step:,}"
    )


def not_ours(folder: RunFolder, *, held: bool = False) -> RunFolderError:
    """Why it cannot be gone on with and has no weights of its end, and what can be typed; `held`: the lock is ours."""
    if not held and folder.in_use():
        return RunFolderError(
            f"{folder.path} is being trained by a program of its own, which qkv watches; its last weights are there"
            f" when that has ended. What is recorded so far: qkv show {typed(folder.path)}"
        )
    path = typed(folder.path)
    return RunFolderError(
        f"{unclosed(folder)}. qkv holds that and the weights of its start, not those of its end, and cannot go on with"
        f" it. To read it: qkv show {path}, qkv show {path} ADDR --at 0, qkv report {path}; to train again, run that"
        " program with another folder"
    )


def no_weights(folder: RunFolder, config: RunConfig, name: str) -> RunFolderError:
    """Why a run has no `name` (its last or its best weights) yet, and what to do."""
    if config.watched and not folder.is_finished:
        return not_ours(folder)
    if config.imported:
        return RunFolderError(
            f"{folder.path} has no {name}: its import was cut short; import it again into a new folder"
        )
    return RunFolderError(f"{folder.path} has no {name} yet; let it train on with --resume")
