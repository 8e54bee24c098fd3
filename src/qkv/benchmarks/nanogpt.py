"""nanoGPT's own training on a text, as a peer: prepared from the same split, scored on every validation token.

Its `train.py` runs as it is, on a copy of the checkout, with the configuration that its README gives for a CPU; only
the number of iterations (with the decay over them) and the learning rate may be others. Characters are its tokens, the
vocabulary that of the whole text, as its own `prepare.py` makes it. Its printed losses are means over 20 random
windows, so the weights it saves are scored anew: windows side by side, each character after the first predicted once,
in bits per byte of the same validation text as ours. The checkpoint is read with `weights_only`.
"""

import json
import math
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np

from qkv.benchmarks.processes import fresh, python

BLOCK = 64
COMMAND = (
    "train.py config/train_shakespeare_char.py --dataset=qkv --device=cpu --compile=False --eval_iters=20"
    f" --log_interval=10 --block_size={BLOCK} --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --dropout=0.0"
)
MOST_LOOKS = 8
"""Validations of its own along a training, of which it keeps the best weights, as its configuration does."""

_SCORE = """
import json, math, sys
import numpy as np, torch
from model import GPT, GPTConfig
block, most = int(sys.argv[1]), int(sys.argv[2])
kept = torch.load("out/ckpt.pt", map_location="cpu", weights_only=True)
model = GPT(GPTConfig(**kept["model_args"]))
model.load_state_dict(kept["model"])
model.eval()
ids = torch.from_numpy(np.fromfile("data/qkv/val.bin", dtype=np.uint16).astype(np.int64))[:most]
nats, count = 0.0, 0
with torch.no_grad():
    for first in range(0, len(ids) - 1, block * 128):
        part = ids[first : first + block * 128 + 1]
        whole = (len(part) - 1) // block
        pieces = [(part[: whole * block].view(-1, block), part[1 : whole * block + 1].view(-1, block))] if whole else []
        rest = part[whole * block :]
        if len(rest) > 1:
            pieces.append((rest[None, :-1], rest[None, 1:]))
        for x, y in pieces:
            logits, loss = model(x, y)
            nats, count = nats + float(loss) * y.numel(), count + y.numel()
print(json.dumps({"nats": nats / count, "count": count}))
"""


class Trained(NamedTuple):
    """One training of nanoGPT's."""

    seconds: float
    """Wall time of its whole process."""
    iterations: int
    bits_per_byte: float
    """Of the weights it kept, on the whole validation text."""


class NanoGPT:
    """A copy of a checkout with one text prepared in it."""

    def __init__(self, checkout: Path, train: str, val: str, val_bytes: int) -> None:
        self._folder = fresh() / "nanogpt"
        shutil.copytree(checkout, self._folder, ignore=shutil.ignore_patterns(".git", "out*", "*.bin"))
        self._bytes, self._chars = val_bytes, len(val)
        prepare(self._folder / "data" / "qkv", train, val)
        (self._folder / "score.py").write_text(_SCORE)

    def train(self, iterations: int, learning_rate: float | None = None) -> Trained:
        """So many iterations with the rate falling over all of them; None is the configuration's rate."""
        looks = max(1, min(MOST_LOOKS, iterations // 250))
        every = max(1, iterations // looks)
        iterations = looks * every
        words = f"--max_iters={iterations} --lr_decay_iters={iterations} --eval_interval={every} --out_dir=out"
        words += f" --warmup_iters={min(100, max(1, iterations // 10))}"
        if learning_rate is not None:
            words += f" --learning_rate={learning_rate} --min_lr={learning_rate / 10}"
        shutil.rmtree(self._folder / "out", ignore_errors=True)
        seconds, _ = python(*COMMAND.split(), *words.split(), cwd=self._folder)
        return Trained(seconds, iterations, self.score())

    def score(self, most: int = 0) -> float:
        """Bits per byte of the saved weights on the validation text, or about that on its first `most` characters."""
        _, said = python("score.py", str(BLOCK), str(most or self._chars), cwd=self._folder)
        nats = json.loads(said.splitlines()[-1])["nats"]
        return nats * self._chars / self._bytes / math.log(2)

    def pace(self) -> tuple[float, float]:
        """(seconds before its first iteration and for its validations, seconds of an iteration) here, from two runs."""
        short, long = (self._timed(n) for n in (20, 120))
        each = max(1e-4, (long - short) / 100)
        return max(0.0, short - 20 * each), each

    def _timed(self, iterations: int) -> float:
        words = f"--max_iters={iterations} --eval_interval={iterations} --out_dir=pace"
        return python(*COMMAND.split(), *words.split(), cwd=self._folder)[0]


def prepare(folder: Path, train: str, val: str) -> None:
    """Its three files: train.bin and val.bin (uint16), and meta.pkl with the vocabulary."""
    folder.mkdir(parents=True)
    characters = sorted(set(train) | set(val))
    assert len(characters) < 65536
    codes = np.array([ord(c) for c in characters], dtype=np.uint32)
    for name, text in (("train", train), ("val", val)):
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        np.searchsorted(codes, points).astype(np.uint16).tofile(folder / f"{name}.bin")
    # All that its train.py reads of this file, in the format it reads: {"vocab_size": n}.
    (folder / "meta.pkl").write_bytes(b"(dp0\nVvocab_size\np1\nI%d\ns." % len(characters))
