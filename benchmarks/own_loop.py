"""What `qkv.watch` costs in a plain loop, or in the Trainer of transformers: with and without it, in turn.

    python benchmarks/own_loop.py [--loop plain|trainer] [--steps 300] [--level light|full] [--pairs 5]

Prints the seconds of each, and the share that watching adds (median of pairs). Expected: at most 3 % at level light.
"""

import argparse
import statistics
import tempfile
import time
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


def plain(steps: int, folder: Path | None, level: str) -> float:
    """Seconds of a loop of one's own."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watcher = qkv.watch(model, optimizer, folder, level=level, names=NAMES, n_heads=4) if folder else None
    ids = batch()
    began = time.perf_counter()
    for _ in range(steps):
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    seconds = time.perf_counter() - began
    if watcher is not None:
        watcher.close()
    return seconds


def trainer(steps: int, folder: Path | None, level: str) -> float:
    """Seconds of the Trainer of transformers on a GPT-2 of the same sizes."""
    import transformers

    transformers.set_seed(0)
    sizes = {"vocab_size": 96, "n_positions": 128, "n_embd": 128, "n_layer": 4, "n_head": 4}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watcher = qkv.watch(model, optimizer, folder, level=level) if folder else None
    examples = [{"input_ids": row, "labels": row} for row in batch()]
    with tempfile.TemporaryDirectory() as place:
        asked = transformers.TrainingArguments(
            output_dir=place, max_steps=steps, per_device_train_batch_size=len(examples), lr_scheduler_type="constant",
            save_strategy="no", logging_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
        )  # fmt: skip
        one = transformers.Trainer(model=model, args=asked, train_dataset=examples, optimizers=(optimizer, None))
        began = time.perf_counter()
        one.train()
        seconds = time.perf_counter() - began
    if watcher is not None:
        watcher.close()
    return seconds


LOOPS = {"plain": plain, "trainer": trainer}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loop", default="plain", choices=LOOPS)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--level", default="light", choices=("light", "full"))
    parser.add_argument("--pairs", type=int, default=5)
    args = parser.parse_args()
    train, shares = LOOPS[args.loop], []
    train(20, None, args.level)
    for turn in range(args.pairs):
        with tempfile.TemporaryDirectory() as place:
            alone, watched = train(args.steps, None, args.level), train(args.steps, Path(place) / "run", args.level)
        shares.append(watched / alone - 1)
        print(f"pair {turn + 1}: {alone:.2f} s alone, {watched:.2f} s watched: {100 * shares[-1]:+.2f} %", flush=True)
    print(
        f"{args.loop} loop: watching at level {args.level} adds {100 * statistics.median(shares):.2f} %"
        f" (median of {args.pairs} pairs)"
    )


if __name__ == "__main__":
    main()
