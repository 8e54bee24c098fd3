"""What is known about a run beside its training: where it ran, how good its loss is, the summary of `--json`."""

import contextlib
import dataclasses
import os
import platform
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from importlib.metadata import version
from pathlib import Path

from qkv import __version__, native
from qkv.changes import parse_changes
from qkv.changes.stored import loaded_path
from qkv.extensions import hashes
from qkv.folder.hashes import sha256_remembered
from qkv.folder.run_folder import RunFolder
from qkv.instruments.measures.arithmetic import or_none
from qkv.jsontypes import JsonMapping, JsonObject
from qkv.models.layout import Sizes
from qkv.models.zoo import model_class
from qkv.recipe.config import RunConfig
from qkv.tasks import Data, Evaluation, Task, Yardsticks, find_task
from qkv.telemetry import Store
from qkv.training.optimizers import own_class
from qkv.training.record import Outcome

_LIBRARIES = ("torch", "numpy", "tokenizers", "safetensors")


def code_of(config: RunConfig) -> dict[str, str]:
    """Code of one's own that a configuration names, `module:name` -> sha256 of its file, and files of `load(...)`.

    Raises ConfigError.
    """
    code: dict[str, object] = {}
    if config.training.optimizer.is_own:
        code[config.training.optimizer.kind] = own_class(config.training.optimizer.kind)
    if config.model.code:
        code[config.model.code] = model_class(config.model)
    task = type(find_task(config.task))
    if not task.__module__.startswith("qkv."):
        code[f"{task.__module__}:{task.__qualname__}"] = task
    loads = [str(c.args[0]) for text in config.changes for c in parse_changes(text) if c.op == "load"]
    files = {spec: Path(loaded_path(spec)) for spec in loads}
    return hashes(code) | {f"load({spec})": sha256_remembered(path) for spec, path in files.items() if path.is_file()}


def in_background(task: Task, data: Data, sizes: Sizes, cache: Path | None) -> "Future[Yardsticks | None]":
    """The task's baselines, made in a thread while the model trains; None for a task without."""
    found: Future[Yardsticks | None] = Future()

    def make() -> None:
        try:
            found.set_result(task.baselines(data, sizes, cache))
        except BaseException as error:  # noqa: BLE001 - given to the thread that asks
            found.set_exception(error)

    threading.Thread(target=make, name="baselines", daemon=True).start()
    return found


def machine_facts(config: RunConfig) -> JsonObject:
    """Library versions, processor and threads: what exactness depends on."""
    is_native = config.machine.passes_natively and not native.why_not("passes")
    return {
        "versions": {"qkv": __version__, "python": platform.python_version()}
        | {name: version(name) for name in _LIBRARIES},
        "cpu": processor(),
        "platform": f"{sys.platform} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": config.machine.threads,
        "ranks": config.machine.ranks,
        "shard": config.machine.shard,
        "precision": config.machine.precision,
        "native": is_native,
        "build": native.build() if is_native else None,
        "kernels": None if config.machine.kernels is None else dataclasses.asdict(config.machine.kernels),
    }


_EXACTNESS: Mapping[str, str] = {
    "versions.qkv": "qkv",
    "versions.torch": "torch",
    "cpu": "the processor",
    "platform": "the platform",
    "threads": "the number of threads",
    "ranks": "the number of processes",
    "shard": "sharding",
    "precision": "the precision",
    "native": "whether passes are native",
    "build.compiler": "the compiler of the native passes",
    "build.options": "its options",
}
"""What the bits of a training depend on beside its configuration -> what it is called."""


def differences(then: JsonMapping, now: JsonMapping) -> list[str]:
    """A phrase for each thing of `machine_facts` that exactness depends on and that is not the same; unknown is not."""
    found = []
    for path, words in _EXACTNESS.items():
        was, is_now = _at(then, path), _at(now, path)
        if was is not None and was != is_now:
            found.append(f"{words} was {was} and is {is_now}")
    return found


def _at(facts: JsonMapping, path: str) -> object:
    """The value at a dotted path; None where there is none."""
    value: object = facts
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def note_machine(store: Store, config: RunConfig, step: int) -> str:
    """Write down where this session runs, from `step` on.

    Returns a sentence where an earlier session of the run ran elsewhere, else "". At step 0 nothing was before.
    """
    sessions = store.clock_fact("machines") or [] if step else []
    facts = machine_facts(config)
    store.set_clock_fact("machines", [*sessions, facts])
    found = list(dict.fromkeys(phrase for before in sessions for phrase in differences(before, facts)))
    sentence = f"{'; '.join(found)}: the end may differ in its last bits from that of an undisturbed run"
    if found:
        store.add_session(step, "machine", sentence)
    store.flush()  # a recorder that starts forgets what is only buffered
    return sentence if found else ""


def processor() -> str:
    """The processor's own name where the system tells it."""
    names: list[str] = []
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def summary(
    folder: RunFolder,
    outcome: Outcome,
    found: Yardsticks | None,
    *,
    judged: Evaluation | None,
    bits_per_byte: float | None,
    parameters: int,
    total_seconds: float,
) -> JsonObject:
    """The object that `qkv train --json` prints; numbers that there are none of are None.

    `judged` adds the task's figures of the best weights, each with its interval, and its note where it has one.
    """
    figures: JsonObject = {"note": judged.note} if judged is not None and judged.note else {}
    for name, figure in (judged.figures if judged is not None else {}).items():
        figures |= {name: figure.value, f"{name}_interval": figure.interval}
    return {
        "run": str(folder.path),
        "steps": outcome.steps,
        "horizon": outcome.horizon,
        "tokens": outcome.tokens,
        "val_loss": or_none(outcome.best_loss),
        "last_val_loss": or_none(outcome.last_loss),
        "best_step": outcome.best_step,
        "bits_per_byte": bits_per_byte,
        "train_seconds": round(outcome.train_seconds, 3),
        "total_seconds": round(total_seconds, 3),
        "tokens_per_second": round(outcome.tokens_per_second, 1),
        "parameters": parameters,
        "stopped_because": outcome.stopped_because,
        "resumed_from_step": outcome.resumed_from_step,
        "baselines": None if found is None else dict(found.summary),
        "baselines_nats": None if found is None else dict(found.nats),
    } | figures
