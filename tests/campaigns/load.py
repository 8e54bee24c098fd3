"""The live page of a running training with 200 readers, each from its own address, asking as the page's script does.

    python tests/campaigns/load.py tinyshakespeare/input.txt --clients 200 --seconds 60 --pairs 3

A training runs with `qkv view` on its folder. In turns there are no readers for a minute, then 200 for a minute. Each
opens the page (`/`, `/first`, `/payload`), listens to its events, and after each pulse asks for four sections, then
waits as long as the server says, at least a second. Told are the answers by status, the time of each, the processor
time of the server and of the readers (which run on the same cores), and the updates per second of the training with
and without readers. Exit status 1 for an answer of 5xx that is not 503 with Retry-After. Linux.
"""

import argparse
import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

from command import machine
from turns import interval

from qkv.telemetry import Telemetry

SECTIONS = "loss,map,run,answers"
LEAST = 1.0
"""Seconds between two questions of a reader."""
QUIET = 5.0
"""Seconds at the start and the end of a turn whose updates are not counted."""
FACTS = ("n_layers=4", "d_model=128", "n_heads=4", "n_ctx=64", "batch_size=12")


class Reader:
    """One page in a browser."""

    def __init__(self, host: str, port: int, number: int, told: list[tuple[str, str, float]]) -> None:
        self._host, self._port, self._told = host, port, told
        self._from = f"127.0.{1 + number // 250}.{1 + number % 250}"
        self._pulse = asyncio.Event()

    async def read(self) -> None:
        """Open the page and follow it, until cancelled."""
        reader, writer = await self._connected()
        try:
            for path in ("/", "/first", "/payload"):
                await self._ask(reader, writer, path)
            listening = asyncio.create_task(self._listen())
            try:
                while True:
                    await self._pulse.wait()
                    self._pulse.clear()
                    if reader.at_eof():  # the server closes what is silent, and a browser connects again
                        writer.close()
                        reader, writer = await self._connected()
                    body = await self._ask(reader, writer, f"/sections?names={SECTIONS}")
                    wait = json.loads(body).get("wait", 0.0) if body.startswith(b"{") else 2.0
                    await asyncio.sleep(max(LEAST, wait))
            finally:
                listening.cancel()
        finally:
            writer.close()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._host, self._port, local_addr=(self._from, 0), limit=1 << 24)

    def _request(self, path: str) -> bytes:
        return f"GET {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n\r\n".encode()

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> bytes:
        began, body = time.monotonic(), b""
        try:
            writer.write(self._request(path))
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            status = head.split()[1]
            if size := re.search(r"content-length: (\d+)", head):
                body = await reader.readexactly(int(size[1]))
            if status in ("429", "503") and "retry-after" not in head:
                status += " without Retry-After"
        except (OSError, asyncio.IncompleteReadError) as error:
            status = type(error).__name__
            self._told.append((path.split("?")[0], status, time.monotonic() - began))
            raise asyncio.CancelledError from None
        self._told.append((path.split("?")[0], status, time.monotonic() - began))
        return body

    async def _listen(self) -> None:
        reader, writer = await self._connected()
        try:
            writer.write(self._request("/events"))
            while line := await reader.readline():
                if line.startswith(b"data:"):
                    self._pulse.set()
        finally:
            writer.close()


async def crowd(host: str, port: int, n: int, seconds: float) -> list[tuple[str, str, float]]:
    """What `n` readers were told in so many seconds: (path, status, seconds)."""
    told: list[tuple[str, str, float]] = []
    readers = [asyncio.create_task(Reader(host, port, number, told).read()) for number in range(n)]
    await asyncio.sleep(seconds)
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    return told


def processor_seconds(process: int) -> float:
    """Of a process, all threads together."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def updates(run: Path) -> int:
    """Updates that the telemetry holds."""
    with Telemetry(run / "telemetry.sqlite") as telemetry:
        return len(telemetry.steps().step)


def rate(run: Path, seconds: float) -> float:
    """Updates per second from now on, for so long."""
    time.sleep(QUIET)
    n, began = updates(run), time.monotonic()
    time.sleep(max(1.0, seconds - 2 * QUIET))
    return (updates(run) - n) / (time.monotonic() - began)


def measured(run: Path, view: int, at: tuple[str, int], clients: int, seconds: float) -> dict[str, object]:
    """One turn without readers and one with them."""
    without = rate(run, seconds)
    server = processor_seconds(view)
    script = [
        sys.executable,
        __file__,
        "--at",
        f"{at[0]}:{at[1]}",
        "--clients",
        str(clients),
        "--seconds",
        str(seconds),
    ]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as readers:
        among = rate(run, seconds)
        out = json.loads(readers.communicate()[0])
    return {"without": without, "among": among, "server": processor_seconds(view) - server, **out}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, nargs="?")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--at", default="", help="only be the readers of the page at HOST:PORT, and tell what came")
    args = parser.parse_args()
    if args.at:
        host, _, port = args.at.partition(":")
        told = asyncio.run(crowd(host, int(port), args.clients, args.seconds))
        print(json.dumps({"told": told, "readers": processor_seconds(os.getpid())}))
        return
    with tempfile.TemporaryDirectory(prefix="qkv-load-") as place:
        turns = beside(Path(place), args.text.resolve(), args.clients, args.seconds, args.pairs)
    sys.exit(said(turns, args.clients))


def beside(place: Path, text: Path, clients: int, seconds: float, pairs: int) -> list[dict]:
    """The turns of a training and of its page, which are ended afterwards."""
    qkv, run = [sys.executable, "-m", "qkv"], place / "run"
    words = ["train", str(text), "--out", str(run), "--steps", "100000000", "--no-report", "--set", ",".join(FACTS)]
    training = subprocess.Popen([*qkv, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not (run / "telemetry.sqlite").exists() or updates(run) < 100:
            time.sleep(1.0)
        environment = {**os.environ, "BROWSER": "true", "PYTHONUNBUFFERED": "1"}
        view = subprocess.Popen(
            [*qkv, "view", str(run), "--port", "0"], stdout=subprocess.PIPE, text=True, env=environment
        )
        try:
            assert view.stdout is not None
            where = urlsplit(re.search(r"http://\S+", view.stdout.readline())[0])  # type: ignore[index]
            at = (str(where.hostname), int(where.port or 0))
            return [measured(run, view.pid, at, clients, seconds) for _ in range(pairs)]
        finally:
            view.send_signal(signal.SIGINT)
            view.wait(10)
    finally:
        training.kill()
        training.wait()


def said(turns: list[dict], clients: int) -> bool:
    """Print the figures; whether an answer was wrong."""
    told = [one for turn in turns for one in turn["told"]]
    statuses = Counter(status for _, status, _ in told)
    print(f"{machine()}; {clients} readers, {len(turns)} turns; answers by status: {dict(statuses)}")
    for path in (*sorted({path for path, _, _ in told}), ""):
        times = sorted(seconds for name, _, seconds in told if path in ("", name))
        late, last = times[int(0.95 * len(times))], times[-1]
        print(
            f"  {path or 'all'}: {len(times)}, median {statistics.median(times):.3f} s, 95% {late:.3f}, all {last:.2f}"
        )
    server, readers = (statistics.mean(turn[name] for turn in turns) for name in ("server", "readers"))
    print(f"processor seconds a turn: server {server:.2f}, readers {readers:.2f}")
    slower = [100 * (1 - turn["among"] / turn["without"]) for turn in turns]
    among = "{:.1f}% ({:.1f} to {:.1f})".format(*interval(slower)) if len(slower) > 1 else f"{slower[0]:.1f}%"
    print(f"the training is slower by {among}; turns {[round(one, 1) for one in slower]}")
    return any((status[0] == "5" and status != "503") or "without" in status for status in statuses)


if __name__ == "__main__":
    main()
