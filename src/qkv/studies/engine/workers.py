"""Where the trainings of a study run: in this process, or in several of one thread each.

What such a process does stands in `worker`. One thread per training and one training per core is
both the fastest way through many small trainings and what makes each row the same bits wherever it is made. Several
machines: `cluster`.
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from qkv.errors import Interrupted, RunError
from qkv.jsontypes import JsonObject
from qkv.studies.engine.cluster import Cluster, is_cluster
from qkv.studies.engine.training import run_trial
from qkv.studies.engine.tuning import Job
from qkv.studies.engine.worker import row_of

_GLANCE_SECONDS = 0.2


class Here:
    """One training at a time, in this process."""

    size = 1

    def __init__(self, cache: Path | None) -> None:
        self._cache = cache
        self._waiting: list[Job] = []

    def start(self, job: Job) -> None:
        """Take a job; it is run when its result is asked for."""
        self._waiting.append(job)

    def finished(self, stop: Callable[[], bool]) -> tuple[Job, JsonObject]:
        """The next job that ended, with its row. Raises UserError for a trial that does not fit, Interrupted."""
        job = self._waiting.pop(0)
        return job, run_trial(job.trial, self._cache)

    def close(self) -> None:
        """Nothing is held."""


class Pool:
    """Several processes; whichever is free takes the next job."""

    def __init__(self, size: int, cache: Path | None) -> None:
        self.size = size
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        command = [sys.executable, "-m", "qkv.studies", "" if cache is None else str(cache)]
        self._processes = [
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment,
                start_new_session=True,
            )
            for _ in range(size)
        ]  # fmt: skip
        self._free = list(self._processes)
        self._ended: queue.Queue[tuple[subprocess.Popen, Job, str]] = queue.Queue()

    def start(self, job: Job) -> None:
        """Give a job to a free process; there must be one."""
        process = self._free.pop()
        assert process.stdin is not None
        try:
            process.stdin.write(job.trial.to_json() + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise self._lost(process) from None
        threading.Thread(target=self._wait, args=(process, job), daemon=True).start()

    def _wait(self, process: subprocess.Popen, job: Job) -> None:
        assert process.stdout is not None
        self._ended.put((process, job, process.stdout.readline()))

    def finished(self, stop: Callable[[], bool]) -> tuple[Job, JsonObject]:
        """The next job that ended, with its row. Raises what the training raised, RunError where a process died.

        Once `stop()` says so, nothing is waited for: Interrupted.
        """
        while True:
            try:
                process, job, line = self._ended.get(timeout=_GLANCE_SECONDS)
                break
            except queue.Empty:
                if stop():
                    raise Interrupted("stopped") from None
        if not line:
            raise self._lost(process)
        row = row_of(json.loads(line))
        self._free.append(process)
        return job, row

    def _lost(self, process: subprocess.Popen) -> RunError:
        status = process.wait()
        return RunError(
            f"a worker of the study ended with status {status}; every training that finished is kept, and the same"
            " command goes on from there"
        )

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            with contextlib.suppress(BrokenPipeError), process:
                pass  # waits for it and closes its streams


Workers = Here | Pool


@contextlib.contextmanager
def places(on: str, size: int, cache: Path | None) -> Iterator[tuple[int, Callable[[int], Workers | Cluster]]]:
    """How many trainings run at a time `on` this machine or a cluster, and what makes workers for at most so many.

    Raises ConfigError for a place that there is none of, and what joining a cluster raises.
    """
    if not is_cluster(on):
        yield size, lambda most: Here(cache) if min(size, most) == 1 else Pool(min(size, most), cache)
        return
    with contextlib.closing(Cluster(on, cache)) as cluster:
        yield cluster.size, lambda most: cluster
