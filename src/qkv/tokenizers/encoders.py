"""Batches of texts into ids, in order: here, or in several processes of their own.

A process runs `serve`: the tokenizer in one line of JSON on its stdin, then batches; their ids on its stdout. It ends
with its stdin, so it never outlives the one that started it. Which one takes a batch changes nothing.
"""

import json
import os
import queue
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from qkv.errors import RunError
from qkv.tokenizers.encoding import limit_memory
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.tokens import id_type, n_utf8

MOST_WORKERS = 8
"""So many processes together stay within a gigabyte; reading the text feeds no more."""
_AHEAD = 2
"""Batches in flight for each process."""


class Batch(NamedTuple):
    """Texts of about a megabyte together."""

    texts: list[str]
    ends: np.ndarray
    """bool [n_texts]: which of them end a document."""


class Encoded(NamedTuple):
    """What a batch became."""

    ids: np.ndarray
    """uint8, uint16 or uint32 [n_tokens], with a mark behind each document where there is one."""
    stops: np.ndarray
    """int64 [n_documents]: where in these ids a document ends."""
    n_chars: int
    n_bytes: int
    n_unknown: int


def most_workers() -> int:
    """One for each core that this process may use, up to eight."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, MOST_WORKERS))


def encode(tokenizer: Tokenizer, end_id: int | None, batch: Batch) -> Encoded:
    """The ids of one batch, `end_id` behind each document; None puts nothing there."""
    ids, lengths = tokenizer.encode_many(batch.texts)
    n_unknown = 0 if tokenizer.unknown_id is None else int((ids == tokenizer.unknown_id).sum())
    stops = np.cumsum(lengths)[batch.ends]
    ids = ids.astype(id_type(tokenizer.d_vocab))
    if end_id is not None:
        ids = np.insert(ids, stops, end_id)
        stops = stops + np.arange(1, len(stops) + 1)
    return Encoded(ids, stops, sum(map(len, batch.texts)), n_utf8(batch.texts), n_unknown)


def encode_all(
    batches: Iterable[Batch], tokenizer: Tokenizer, end_id: int | None, workers: int = 1
) -> Iterator[Encoded]:
    """All batches in their order, by that many processes; 1 is this one. Memory is bounded by a few batches each.

    Raises RunError where a process ends.
    """
    if workers < 2:
        for batch in batches:
            yield encode(tokenizer, end_id, batch)
        return
    with Encoders(tokenizer, end_id, workers) as encoders:
        waiting: deque[Future[Encoded]] = deque()
        for batch in batches:
            waiting.append(encoders.start(batch))
            if len(waiting) > _AHEAD * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class Encoders:
    """Several processes; whichever is free takes the next batch. Use it as a context manager."""

    def __init__(self, tokenizer: Tokenizer, end_id: int | None, size: int) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        self._dtype = id_type(tokenizer.d_vocab)
        about = json.dumps({"tokenizer": tokenizer.to_json(), "end": end_id, "share": size}).encode() + b"\n"
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="encoder")
        self._free: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-c", "from qkv.tokenizers.encoders import serve; serve()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches the one that started it, which ends it
            )
            for _ in range(size)
        ]
        for process in self._processes:
            self._put(process, about)
            self._free.put(process)

    def __enter__(self) -> "Encoders":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for process in self._processes if error is not None else ():
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                try:
                    pipe.close()
                except OSError:  # what was not sent to one that was killed
                    pass
            process.wait()

    def start(self, batch: Batch) -> "Future[Encoded]":
        """The ids of a batch, once a process has made them."""
        return self._threads.submit(self._ask, batch)

    def _ask(self, batch: Batch) -> Encoded:
        process = self._free.get()
        data = [text.encode("utf-8", "surrogatepass") for text in batch.texts]
        head = {"sizes": list(map(len, data)), "ends": batch.ends.astype(int).tolist()}
        self._put(process, json.dumps(head).encode() + b"\n" + b"".join(data))
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.endswith(b"\n"):
            raise self._lost(process)
        told = json.loads(line)
        content = process.stdout.read(told["n"] * np.dtype(self._dtype).itemsize)
        if len(content) != told["n"] * np.dtype(self._dtype).itemsize:
            raise self._lost(process)
        self._free.put(process)
        stops = np.array(told["stops"], dtype=np.int64)
        return Encoded(np.frombuffer(content, self._dtype), stops, told["chars"], told["bytes"], told["unknown"])

    def _put(self, process: "subprocess.Popen[bytes]", data: bytes) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(data)
            process.stdin.flush()
        except OSError:
            raise self._lost(process) from None

    def _lost(self, process: "subprocess.Popen[bytes]") -> RunError:
        return RunError(
            f"a process that cuts text into tokens ended with status {process.wait()}; the same command goes on from"
            " the last piece that was written"
        )


def serve() -> None:
    """Answer the batches on stdin until there are no more: what a process does."""
    asked, told = sys.stdin.buffer, sys.stdout.buffer
    if not (first := asked.readline()).endswith(b"\n"):
        return
    about = json.loads(first)
    tokenizer = Tokenizer.from_json(about["tokenizer"])
    limit_memory(about["share"])
    while (line := asked.readline()).endswith(b"\n"):
        head = json.loads(line)
        texts = [asked.read(size) for size in head["sizes"]]
        if sum(map(len, texts)) < sum(head["sizes"]):
            return  # who asked is gone
        decoded = [text.decode("utf-8", "surrogatepass") for text in texts]
        found = encode(tokenizer, about["end"], Batch(decoded, np.array(head["ends"], dtype=bool)))
        answer = {"n": len(found.ids), "stops": found.stops.tolist(), "chars": found.n_chars}
        answer |= {"bytes": found.n_bytes, "unknown": found.n_unknown}
        try:
            told.write(json.dumps(answer).encode() + b"\n" + found.ids.tobytes())
            told.flush()
        except BrokenPipeError:  # the reader is gone; what is left in the buffer is dropped
            os._exit(1)
