"""Trainings of a study on the machines of a Ray cluster (Moritz et al. 2018, arXiv 1712.05889); the extra `cluster`.

A trial goes there as its JSON and a row comes back as JSON, one training per core. A training whose worker or machine
died is made again elsewhere, a few times; since a row is a pure function of its trial, the verdict does not depend on
who made it, or how often. Every machine needs this qkv, the same torch (compared), and the text under the same path
(its hash is compared). What a cluster is sent, it runs: use one that you trust.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qkv.errors import ConfigError, Interrupted, MissingExtra, RunError
from qkv.installing import install
from qkv.jsontypes import JsonObject
from qkv.studies.engine.assembly import software
from qkv.studies.engine.tuning import Job
from qkv.studies.engine.worker import answer, row_of

_TRIES_AGAIN = 3
"""How often a training is made again whose worker died."""
_GLANCE_SECONDS = 0.2
_SCHEME = "ray://"


def is_cluster(on: str) -> bool:
    """Whether `on` names a Ray cluster; False is this machine. Raises ConfigError for anything else."""
    if on in ("local", "ray") or (on.startswith(_SCHEME) and ":" in on[len(_SCHEME) :]):
        return on != "local"
    raise ConfigError(
        f"--on is {on!r}; expected local, ray (the cluster of this machine, or one started here), or"
        " ray://HOST:PORT as `ray start --head` prints it"
    )


class Cluster:
    """The cores of a cluster; whichever is free takes the next job. What `workers.Pool` answers."""

    def __init__(self, on: str, cache: Path | None) -> None:
        """Join the cluster at `on`. Raises MissingExtra without Ray, RunError where there is no such cluster."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing asks a network
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            import ray
        except ImportError:
            raise MissingExtra(f"--on {on} needs another library; type: {install('cluster')}") from None
        self._ray: Any = ray
        quiet: JsonObject = {"include_dashboard": False} if on == "ray" else {}
        with contextlib.ExitStack() as joined:  # Ray says whom it lost; stdout is for the verdict
            joined.enter_context(contextlib.redirect_stdout(sys.stderr))
            try:
                ray.init(address=on.removeprefix(_SCHEME) if on != "ray" else None, log_to_driver=False, **quiet)
            except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
                raise RunError(f"no Ray cluster could be reached at {on}: {reason}") from None
            joined.callback(ray.shutdown)
            self._joined = joined.pop_all()
        self.size = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._cache = "" if cache is None else str(cache)
        self._remote = ray.remote(num_cpus=1, max_retries=_TRIES_AGAIN)(made_there)
        self._running: dict[Any, Job] = {}

    def start(self, job: Job) -> None:
        """Send a job; it waits there where no core is free."""
        self._running[self._remote.remote(job.trial.to_json(), self._cache, software())] = job

    def finished(self, stop: Callable[[], bool]) -> tuple[Job, JsonObject]:
        """The next job that ended, with its row. Raises what the training raised, RunError where it died too often.

        Once `stop()` says so, nothing is waited for: Interrupted.
        """
        while not (ended := self._ray.wait(list(self._running), num_returns=1, timeout=_GLANCE_SECONDS)[0]):
            if stop():
                raise Interrupted("stopped")
        job = self._running.pop(ended[0])
        try:
            answered = json.loads(self._ray.get(ended[0]))
        except self._ray.exceptions.RayError as error:
            raise RunError(
                f"a training was lost on the cluster, {_TRIES_AGAIN + 1} times: {type(error).__name__}; every training"
                " that finished is kept, and the same command goes on from there"
            ) from None
        return job, row_of(answered)

    def close(self) -> None:
        """Give up what is running, and leave; a cluster that was started here ends. Once more does nothing."""
        for waiting in self._running:
            self._ray.cancel(waiting, force=True)
        self._running = {}
        self._joined.close()


def made_there(trial: str, cache: str, wanted: str) -> str:
    """On a machine of the cluster: the row of a trial, or what went wrong, as JSON."""
    if software() != wanted:
        message = f"a machine of the cluster has {software()}, and this one {wanted}: its rows would be of other bits"
        return json.dumps({"error": "RunError", "message": f"{message}; install the same on all of them"})
    return json.dumps(answer(trial, Path(cache) if cache else None))
