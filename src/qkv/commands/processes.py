"""Starts the processes of `qkv train --nproc N`, waits for them, and lets one sentence tell how they ended.

Each is the same command line with torchrun's variables; they meet in a folder that is removed afterwards. What a signal
asks of this process is asked of all of them once. Processes but the first keep what they say to themselves, and end
with this one: they hold the other end of a pipe that closes when it dies.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from qkv.training.distributed.started import ENDED, FOLDER_VARIABLE

_GRACE_SECONDS = 60.0
"""How long the others may take to save and end, once one has."""
_LOOPBACK = {"linux": "lo", "darwin": "lo0"}


def end_with_starter() -> None:
    """In a process that `launch` started: ask this one to stop, as SIGTERM does, when the one that started it dies."""
    if FOLDER_VARIABLE not in os.environ:
        return

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True, name="starter").start()


def launch(words: Sequence[str], n: int) -> int:
    """Run `qkv WORDS` in `n` processes that train together; the exit status of the first, or 1 where it was killed."""
    with tempfile.TemporaryDirectory(prefix="qkv-ranks-") as place:
        folder = Path(place)
        processes = [_start(words, rank, n, folder) for rank in range(n)]
        before = {number: signal.signal(number, _forward(processes)) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            _wait(processes, folder)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for process in processes:
                process.kill()
                process.wait()
                if process.stdin is not None:
                    process.stdin.close()
        status = processes[0].returncode
        if status >= 0:
            return status
        said = [words for rank in range(1, n) if (words := _last_words(folder, rank))]
        print(said[0] if said else f"qkv: {_how_it_ended(processes, 0, folder)}", file=sys.stderr)
        return 1


def _start(words: Sequence[str], rank: int, n: int, folder: Path) -> subprocess.Popen[bytes]:
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": n, "LOCAL_WORLD_SIZE": n}
    environment: Mapping[str, str] = {
        **({"GLOO_SOCKET_IFNAME": _LOOPBACK[sys.platform]} if sys.platform in _LOOPBACK else {}),
        **os.environ,
        **{name: str(number) for name, number in numbers.items()},
        FOLDER_VARIABLE: str(folder),
    }
    with open(folder / f"said-{rank}", "wb") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "qkv", *words],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=None if rank == 0 else subprocess.DEVNULL,
            stderr=None if rank == 0 else said,
            start_new_session=True,  # Ctrl-C reaches this process alone, which hands it on once
        )


def _forward(processes: Sequence[subprocess.Popen[bytes]]):  # noqa: ANN202
    def hand_on(number: int, frame: FrameType | None) -> None:
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)

    return hand_on


def _wait(processes: Sequence[subprocess.Popen[bytes]], folder: Path) -> None:
    """Until all have ended; the first that ends badly is written down, and the others have a while to follow it."""
    until = float("inf")
    while any(process.poll() is None for process in processes) and time.monotonic() < until:
        failed = next((rank for rank, process in enumerate(processes) if process.poll()), None)
        if failed is not None and until == float("inf"):
            until = time.monotonic() + _GRACE_SECONDS
            (folder / ".ended").write_text(_how_it_ended(processes, failed, folder), encoding="utf-8")
            (folder / ".ended").rename(folder / ENDED)
        time.sleep(0.05)


def _how_it_ended(processes: Sequence[subprocess.Popen[bytes]], rank: int, folder: Path) -> str:
    """Which process it was and what ended it, without a full stop."""
    status, which = processes[rank].returncode, f"process {rank} of {len(processes)}"
    if status is not None and status < 0:
        return f"{which} was killed by signal {-status} ({signal.Signals(-status).name})"
    said = _last_words(folder, rank).removeprefix("qkv: ")
    return f"{which} ended with status {status}" + (f" ({said})" if said else "")


def _last_words(folder: Path, rank: int) -> str:
    lines = (folder / f"said-{rank}").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
