"""What is known about a run beside its training: where it ran, how good its loss is, the summary of `--json`."""

import os
import platform
import sys
import threading
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from qkv.data.baselines import Baselines, baselines
from qkv.data.corpus import Corpus
from qkv.folder import RunFolder
from qkv.recipe.request import RunConfig
from qkv.training.record import Outcome

__all__ = ["BackgroundBaselines", "machine_facts", "summary"]

_LIBRARIES = ("torch", "numpy", "tokenizers", "safetensors")


class BackgroundBaselines:
    """Counts n-grams and compresses while the model trains; `result` waits for both."""

    def __init__(self, corpus: Corpus, cache: Path | None) -> None:
        self._found: Baselines | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._count, args=(corpus, cache), name="baselines", daemon=True)
        self._thread.start()

    def _count(self, corpus: Corpus, cache: Path | None) -> None:
        try:
            self._found = baselines(corpus, cache)
        except BaseException as error:  # noqa: BLE001 - given to the thread that asks
            self._error = error

    def result(self) -> Baselines:
        """The baselines, once they are there. Raises what counting raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._found is not None
        return self._found


def machine_facts(config: RunConfig) -> dict[str, Any]:
    """Library versions, processor and threads: what exactness depends on."""
    return {
        "versions": {"qkv": version("qkv"), "python": platform.python_version()}
        | {name: version(name) for name in _LIBRARIES},
        "cpu": _cpu(),
        "platform": f"{sys.platform} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": config.machine.threads,
        "precision": config.machine.precision,
    }


def _cpu() -> str:
    """The processor's own name where the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
        return names[0] if names else platform.processor() or platform.machine()
    except OSError:
        return platform.processor() or platform.machine()


def summary(
    folder: RunFolder,
    outcome: Outcome,
    found: Baselines | None,
    *,
    bits_per_byte: float | None,
    parameters: int,
    total_seconds: float,
) -> dict[str, Any]:
    """The object that `qkv train --json` prints; numbers that there are none of are None."""
    return {
        "run": str(folder.path),
        "steps": outcome.steps,
        "tokens": outcome.tokens,
        "val_loss": _number(outcome.best_loss),
        "last_val_loss": _number(outcome.last_loss),
        "best_step": outcome.best_step,
        "bits_per_byte": bits_per_byte,
        "train_seconds": round(outcome.train_seconds, 3),
        "total_seconds": round(total_seconds, 3),
        "tokens_per_second": round(outcome.tokens_per_second, 1),
        "parameters": parameters,
        "stopped_because": outcome.stopped_because,
        "resumed_from_step": outcome.resumed_from_step,
        "baselines": None if found is None else baselines_in_bits(found),
        "baselines_nats": None if found is None else baselines_in_nats(found),
    }


def baselines_in_bits(found: Baselines) -> Mapping[str, Any]:
    """unigram, bigram, ngram, xz in bits per byte, with the order of the n-gram."""
    return dict(found.bits_per_byte) | {"ngram_order": found.ngram_order}


def baselines_in_nats(found: Baselines) -> Mapping[str, Any]:
    """The same in nats per token."""
    return {name: getattr(found, name) for name in ("unigram", "bigram", "ngram", "ngram_order", "xz")}


def _number(value: float) -> float | None:
    return value if value == value and abs(value) != float("inf") else None
