"""What `qkv.watch` costs in a plain loop, or in the Trainer of transformers: with and without it, in turns.

    python tests/campaigns/own_loop.py [--loop plain|trainer] [--steps 1500] [--level light|full] [--pairs 6]

A pair is the same training alone and watched, each a process, in turns (turns.py). Seconds count from where the imports
and ten steps are behind both, to the end of the process: `qkv.watch`, the first and the last look and the sealing of
the run folder by `close` are in them. Prints the mean ratio with its 95 % interval, and whether both ended with the
same weights. Exit status 1 where the mean is above 1.03 at `light`, or the weights differ.
"""

import argparse
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from command import fresh, machine
from torch import nn
from turns import Command, in_turns, interval

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


def plain(steps: int, folder: Path | None, level: str) -> nn.Module:
    """A loop of one's own; the trained model."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = batch()
    watcher = qkv.watch(model, optimizer, folder, level=level, names=NAMES, n_heads=4) if folder else None
    for _ in range(steps):
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if watcher is not None:
        watcher.close()
    return model


def trainer(steps: int, folder: Path | None, level: str) -> nn.Module:
    """The Trainer of transformers on a GPT-2 of the same sizes; the trained model."""
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
        watcher = qkv.watch(model, optimizer, folder, level=level) if folder else None
        one.train()
        if watcher is not None:
            watcher.close()
    return model


LOOPS: dict[str, Callable[[int, Path | None, str], nn.Module]] = {"plain": plain, "trainer": trainer}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loop", default="plain", choices=LOOPS)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--level", default="light", choices=("light", "full"))
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--turn", type=float, default=0.1, help="seconds")
    parser.add_argument("--one", nargs=2, metavar=("RUN", "alone|watched"), help="only train, with RUN beside its mark")
    args = parser.parse_args()
    if args.one:
        return one(args.loop, args.steps, args.level, Path(args.one[0]), watched=args.one[1] == "watched")
    print(f"{machine()}; {args.loop} loop, {args.steps} steps, level {args.level}", flush=True)
    ratios, same = [], True
    for number in range(args.pairs):
        two = [command(args.loop, args.steps, args.level, way) for way in ("alone", "watched")]
        in_turns(two if number % 2 == 0 else two[::-1], args.turn)
        alone, watched = two
        same &= alone.said().splitlines()[-1] == watched.said().splitlines()[-1]
        ratios.append(watched.seconds / alone.seconds)
        print(
            f"pair {number + 1}: {alone.seconds:.2f} s alone, {watched.seconds:.2f} s watched: {ratios[-1]:.4f}",
            flush=True,
        )
    mean, low, high = interval(ratios) if len(ratios) > 1 else (ratios[0],) * 3
    print(f"watched over alone: {mean:.4f}, 95 % interval {low:.4f} to {high:.4f}; weights identical: {same}")
    sys.exit(not same or (args.level == "light" and mean > 1.03))


def command(loop: str, steps: int, level: str, way: str) -> Command:
    """One side of a pair."""
    place = fresh()
    words = ["--loop", loop, "--steps", str(steps), "--level", level, "--one", str(place / "run"), way]
    return Command([sys.executable, __file__, *words], place, begins=place / "begun")


def one(loop: str, steps: int, level: str, run: Path, *, watched: bool) -> None:
    """Train once; prints a hash of the weights."""
    with tempfile.TemporaryDirectory() as warm:  # imports and first products count for neither side
        LOOPS[loop](10, None, level), LOOPS[loop](10, Path(warm) / "run", level)
    (run.parent / "begun").touch()
    model = LOOPS[loop](steps, run if watched else None, level)
    weights = (values.detach().numpy().tobytes() for values in model.state_dict().values())
    print(hashlib.sha256(b"".join(weights)).hexdigest())
    shutil.rmtree(run, ignore_errors=True)


if __name__ == "__main__":
    main()
