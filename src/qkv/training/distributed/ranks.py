"""The processes that train one model together: which of them this one is, and sums over all of them.

Data parallel. Every rank holds all weights and takes its share of the global batch, whose draws are named by global
example; the loss is divided by the global number of targets, and gradients are summed over ranks before they are
clipped. So clipping, optimizer, changes and schedule do on every rank what one process would do, on the same numbers:
they need no word about ranks, and all ranks keep the same bits. Rank 0 alone watches and writes.

torch's `DistributedDataParallel` is not used. It rearranges its buckets after the first update of a process, so that
the order of a sum, and with it its last bits, would depend on when a process began: a resumed run would not end with
the same bytes. And it must know beforehand which parameters get gradients, which a change may alter at any step. Here
gradients are summed after the backward pass, in buckets that follow from the catalogue alone.

What runs between processes is torch's: gloo for sums on the CPU and for everything small, NCCL for gradients on CUDA.
Each sum is a pure function of its terms and their number. Weights that are shared out as well: `shards`.
"""

import contextlib
import datetime
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from qkv.errors import ConfigError, RankLostError, RunError
from qkv.jsontypes import JsonObject
from qkv.training.config import TrainingConfig
from qkv.training.distributed.started import ENDED, FOLDER_VARIABLE, is_started

_BUCKET_BYTES = 32 << 20
_PATIENCE = datetime.timedelta(hours=6)
"""How long one rank waits for another; a process that ends is noticed at once."""
_WORDS_SECONDS = 3.0
"""How long a rank waits for the word which other one has ended."""


class Ranks:
    """One of `world` processes; alone, every method gives back what it was given. Use it as a context manager.

    All methods but `share` are called by every rank, in the same order. They raise RankLostError where another one has
    ended.
    """

    def __init__(self, rank: int = 0, world: int = 1, beside: int = 1, folder: Path | None = None) -> None:
        self.rank, self.world = rank, world
        self.beside = beside
        """How many of them run on this machine."""
        self._folder = folder

    @property
    def is_first(self) -> bool:
        """Whether this one watches and writes."""
        return self.rank == 0

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *error: object) -> None:
        if self.world > 1 and dist.is_initialized():
            dist.destroy_process_group()

    # data

    def share(self, examples: np.ndarray) -> np.ndarray:
        """This rank's part of the global example numbers of a batch: neighbours, as many as every other rank's."""
        assert len(examples) % self.world == 0
        return examples.reshape(self.world, -1)[self.rank]

    # numbers, float64 on the CPU

    def gather(self, *values: float) -> list[tuple[float, ...]]:
        """What each rank gave, in the order of ranks."""
        if self.world == 1:
            return [values]
        table = torch.zeros(self.world, len(values), dtype=torch.float64)
        table[self.rank] = torch.tensor(values, dtype=torch.float64)
        with self.together(alone=True):
            dist.all_reduce(table)
        return [tuple(row) for row in table.tolist()]

    def sum(self, *values: float) -> tuple[float, ...]:
        """The sum over ranks of each value, added in the order of ranks."""
        return values if self.world == 1 else tuple(sum(column) for column in zip(*self.gather(*values), strict=True))

    def highest(self, value: float) -> float:
        """The greatest value that a rank gave."""
        return max(given for (given,) in self.gather(value))

    def of_first(self, value: float) -> float:
        """What rank 0 gave: its clock decides, not each one's own."""
        return self.gather(value)[0][0]

    def meet(self) -> None:
        """Wait for all."""
        self.gather(0.0)

    def tell(self, facts: Mapping[str, object] | None) -> JsonObject:
        """What rank 0 gives (as JSON knows it), on every rank."""
        if self.world == 1:
            return dict(facts or {})
        text = json.dumps(facts).encode() if self.is_first else b""
        size = int(self.of_first(len(text)))
        content = torch.zeros(size, dtype=torch.uint8)
        if self.is_first:
            content.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        with self.together(alone=True):
            dist.broadcast(content, src=0)
        return json.loads(content.numpy().tobytes())

    # tensors

    @torch.no_grad()
    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Replace each gradient by its sum over ranks; one that is None is so on every rank."""
        if self.world == 1:
            return
        waiting = []
        with self.together(alone=True):
            for bucket in buckets([p.grad for p in parameters if p.grad is not None]):
                flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
                waiting.append((bucket, flat, dist.all_reduce(flat, async_op=True)))
            for bucket, flat, work in waiting:
                assert work is not None
                work.wait()
                pieces = flat.split([gradient.numel() for gradient in bucket])
                torch._foreach_copy_(bucket, [p.view(g.shape) for p, g in zip(pieces, bucket, strict=True)])  # type: ignore[attr-defined]

    @torch.no_grad()
    def compare(self, parameters: Sequence[Tensor], step: int) -> None:
        """Make sure that all ranks hold the same weights, bit for bit (by a checksum of 52 bits).

        Raises RunError that names the first rank that differs: its memory or processor cannot be trusted.
        """
        if self.world == 1:
            return
        sums = self.gather(float(sum(map(_checksum, parameters)) % (1 << 52)))
        differing = next((rank for rank, one in enumerate(sums) if one != sums[0]), None)
        if differing is not None:
            raise RunError(
                f"the weights of process {differing} are not those of process 0 at step {step}, though both made the"
                " same updates: something computes wrongly there; nothing was saved since the last checkpoint"
            )

    @contextlib.contextmanager
    def together(self, *, alone: bool = False) -> Iterator[None]:
        """Where ranks talk to each other: an error of theirs is a RankLostError, and any other stays itself.

        `alone`: nothing else is done inside, so every error is one of theirs.
        """
        try:
            yield
        except RuntimeError as error:
            if alone or isinstance(error, dist.DistError) or "gloo" in str(error):
                raise RankLostError(self._who_ended()) from error
            raise

    def _who_ended(self) -> str:
        """Which process has ended, if the launcher says so in time."""
        until = time.monotonic() + _WORDS_SECONDS
        while self._folder is not None and time.monotonic() < until:
            with contextlib.suppress(OSError):
                return (self._folder / ENDED).read_text(encoding="utf-8")
            time.sleep(0.05)
        return f"another of the {self.world} processes has ended"


ALONE = Ranks()
"""The one process of a training that is not shared."""


def join() -> Ranks:
    """Meet the other processes that `qkv train --nproc` or torchrun started; alone where nobody did.

    Raises ConfigError for variables that make no sense, RankLostError where the others do not come.
    """
    if not is_started():
        return ALONE
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    try:
        rank, world, local, beside = (int(os.environ[name]) for name in names)
    except (KeyError, ValueError):
        given = ", ".join(f"{name}={os.environ.get(name, '')}" for name in names)
        raise ConfigError(f"the environment says {given}; expected the numbers that torchrun sets") from None
    folder = Path(os.environ[FOLDER_VARIABLE]) if FOLDER_VARIABLE in os.environ else None
    if torch.cuda.is_available():
        torch.cuda.set_device(local % torch.cuda.device_count())
    ranks = Ranks(rank, world, beside, folder)
    with ranks.together(alone=True):
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            init_method=f"file://{folder / 'meeting'}" if folder else "env://",
            rank=rank,
            world_size=world,
            timeout=_PATIENCE,
        )
    return ranks


def check_shares(training: TrainingConfig, world: int, examples: str) -> None:
    """Make sure that each rank has an equal share of a batch. Raises ConfigError with what would fit."""
    n = training.batch_size
    if world > n:
        raise ConfigError(
            f"--nproc is {world}, but a batch has {n} {examples}; give at most {n} processes, or a larger batch"
            f" (--set batch_size={world})"
        )
    if n % world:
        below, above = n - n % world, n + world - n % world
        raise ConfigError(
            f"--nproc is {world}, but a batch of {n} {examples} cannot be shared equally among {world} processes;"
            f" set batch_size to {below} or {above} (--set batch_size={above})"
        )


def buckets(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours of one type, about 32 MiB at a time: a function of shapes alone."""
    bucket: list[Tensor] = []
    n_bytes = 0
    for gradient in gradients:
        if bucket and (n_bytes >= _BUCKET_BYTES or gradient.dtype != bucket[0].dtype):
            yield bucket
            bucket, n_bytes = [], 0
        bucket.append(gradient)
        n_bytes += gradient.numel() * gradient.element_size()
    if bucket:
        yield bucket


def _checksum(parameter: Tensor) -> int:
    """The sum of a tensor's bits, read as whole numbers."""
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[parameter.element_size()]
    return int(parameter.detach().contiguous().view(kind).sum(dtype=torch.int64))
