"""What `qkv.watch` costs in a plain loop, or in the Trainer of transformers: with and without it, in turn.

    python benchmarks/own_loop.py [--loop plain|trainer] [--steps 300] [--level light|full] [--pairs 4]

Pairs in the order A B B A: the same training alone and watched, from `qkv.watch` to `close`, so that the first and the
last look and the sealing of the run folder count as well. Prints what watching adds (median of pairs), by the clock and
in processor seconds, which other work on the machine disturbs less. Exit status 1 where both are above 3 % at `light`.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import qkv


class Model(nn.Module):
    """A Transformer of torch's own parts, with the sizes of a small character model."""

    def __init__(self, d: int = 128, n_layers: int = 4, d_vocab: int = 96) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(d, 4, 4 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.table = nn.Embedding(d_vocab, d)
        self.body = nn.TransformerEncoder(layer, n_layers, enable_nested_tensor=False)
        self.out = nn.Linear(d, d_vocab)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """ids [batch, pos] -> logits [batch, pos, d_vocab]."""
        return self.out(self.body(self.table(ids)))


NAMES = {
    "table.weight": "W_E",
    "body.layers.{L}.self_attn.in_proj_weight": "L{L}.W_Q, L{L}.W_K, L{L}.W_V",
    "body.layers.{L}.self_attn.out_proj.weight": "L{L}.W_O",
    "body.layers.{L}.linear1.weight": "L{L}.W_in",
    "body.layers.{L}.linear2.weight": "L{L}.W_out",
    "out.weight": "W_U",
}


def batch() -> torch.Tensor:
    """The ids of every step."""
    return torch.randint(0, 96, (16, 128))


@dataclass(frozen=True)
class Took:
    """Seconds of a training: by the clock, and of the processor."""

    wall: float
    cpu: float


@contextlib.contextmanager
def timed() -> Iterator[list[Took]]:
    """A list to which what the body took is added."""
    found: list[Took] = []
    wall, cpu = time.perf_counter(), time.process_time()
    yield found
    found.append(Took(time.perf_counter() - wall, time.process_time() - cpu))


def plain(steps: int, folder: Path | None, level: str) -> Took:
    """A loop of one's own."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = batch()
    with timed() as took:
        watcher = qkv.watch(model, optimizer, folder, level=level, names=NAMES, n_heads=4) if folder else None
        for _ in range(steps):
            loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if watcher is not None:
            watcher.close()
    return took[0]


def trainer(steps: int, folder: Path | None, level: str) -> Took:
    """The Trainer of transformers on a GPT-2 of the same sizes."""
    import transformers

    transformers.set_seed(0)
    sizes = {"vocab_size": 96, "n_positions": 128, "n_embd": 128, "n_layer": 4, "n_head": 4}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    examples = [{"input_ids": row, "labels": row} for row in batch()]
    with tempfile.TemporaryDirectory() as place:
        asked = transformers.TrainingArguments(
            output_dir=place, max_steps=steps, per_device_train_batch_size=len(examples), lr_scheduler_type="constant",
            save_strategy="no", logging_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
        )  # fmt: skip
        one = transformers.Trainer(model=model, args=asked, train_dataset=examples, optimizers=(optimizer, None))
        with timed() as took:
            watcher = qkv.watch(model, optimizer, folder, level=level) if folder else None
            one.train()
            if watcher is not None:
                watcher.close()
    return took[0]


LOOPS = {"plain": plain, "trainer": trainer}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loop", default="plain", choices=LOOPS)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--level", default="light", choices=("light", "full"))
    parser.add_argument("--pairs", type=int, default=4)
    args = parser.parse_args()
    train, pairs = LOOPS[args.loop], []
    with tempfile.TemporaryDirectory() as warm:  # imports and first products count for neither side
        train(10, None, args.level), train(10, Path(warm) / "run", args.level)
    for turn in range(args.pairs):
        with tempfile.TemporaryDirectory() as place:
            order = (None, Path(place) / "run")
            took = {
                folder: train(args.steps, folder, args.level) for folder in (order if turn % 2 == 0 else order[::-1])
            }
        alone, watched = (took[folder] for folder in order)
        pairs.append(Took(watched.wall / alone.wall - 1, watched.cpu / alone.cpu - 1))
        print(
            f"pair {turn + 1}: {alone.wall:.2f} s alone, {watched.wall:.2f} s watched: {100 * pairs[-1].wall:+.2f} %;"
            f" processor {alone.cpu:.2f} and {watched.cpu:.2f} s: {100 * pairs[-1].cpu:+.2f} %",
            flush=True,
        )
    wall, cpu = (statistics.median(values) for values in ([p.wall for p in pairs], [p.cpu for p in pairs]))
    print(
        f"{args.loop} loop, {args.steps} steps: watching at level {args.level} adds {100 * wall:.2f} % of the time and"
        f" {100 * cpu:.2f} % of the processor's (medians of {args.pairs} pairs)"
    )
    sys.exit(args.level == "light" and min(wall, cpu) > 0.03)


if __name__ == "__main__":
    main()
