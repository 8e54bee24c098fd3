"""What `qkv.watch` costs in a plain loop: the same training with and without it, in turn, three times each.

    python benchmarks/own_loop.py [--steps 300] [--level light|full]

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


def train(steps: int, folder: Path | None, level: str) -> float:
    """Seconds of the loop."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watcher = qkv.watch(model, optimizer, folder, level=level, names=NAMES, n_heads=4) if folder else None
    ids = torch.randint(0, 96, (16, 128))
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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--level", default="light", choices=("light", "full"))
    args = parser.parse_args()
    shares = []
    train(20, None, args.level)
    for turn in range(3):
        with tempfile.TemporaryDirectory() as place:
            plain, watched = train(args.steps, None, args.level), train(args.steps, Path(place) / "run", args.level)
        shares.append(watched / plain - 1)
        print(f"turn {turn + 1}: {plain:.2f} s plain, {watched:.2f} s watched: {100 * shares[-1]:+.2f} %")
    print(f"watching at level {args.level} adds {100 * statistics.median(shares):.2f} % (median of 3 pairs)")


if __name__ == "__main__":
    main()
