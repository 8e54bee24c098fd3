"""Whole-process time until a validation loss on a text with default settings; beside nanoGPT's CPU command.

    python tests/campaigns/time_to_loss.py tinyshakespeare/input.txt --until 1.88 --seeds 3 --nanogpt nanoGPT
    python tests/campaigns/time_to_loss.py tinyshakespeare/input.txt --until 1.558 --minutes 10 --seeds 3

nanoGPT's command is the one in its README for a CPU (2,000 iterations, documented loss 1.88 on 20 random windows); its
time is that of the whole process, data preparation left out. nanoGPT once, then ours for every seed. As `qkv bench
time-to-loss`, with any first seed and an exit status where a seed misses.
"""

import argparse
import sys
from pathlib import Path

from command import fresh, machine, qkv, spread

from qkv.benchmarks.time_to_loss import ends_there, nanogpt_command


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--until", type=float, required=True)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--nanogpt", type=Path)
    parser.add_argument("--tokenizer", default="char")
    args = parser.parse_args()
    print(machine())
    theirs = nanogpt_command(args.nanogpt, args.text) if args.nanogpt else None
    seconds, losses, results = [], [], {}
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        words = ["train", str(args.text), "--tokenizer", args.tokenizer, "--until-loss", str(args.until)]
        words += ["--minutes", str(args.minutes)] if args.minutes else []
        taken, results = qkv(*words, "--seed", str(seed), "--out", str(fresh() / "run"))
        seconds.append(taken)
        losses.append(results["val_loss"])
        print(
            f"seed {seed}: {results['val_loss']:.4f} nats after {results['steps']} steps, {results['tokens']:,} tokens:"
            f" {results['train_seconds']:.1f} s of training, {taken:.1f} s in all ({results['stopped_because']})"
        )
    print(f"{results['parameters']:,} parameters; whole process, seconds: {spread(seconds)}; losses: {spread(losses)}")
    if theirs:
        took, loss = theirs
        compares = max(losses) <= args.until and ends_there(loss, args.until)
        ratio = f"ratio {took / sorted(seconds)[len(seconds) // 2]:.1f}" if compares else "times do not compare"
        print(f"nanoGPT's CPU command: {took:.1f} s, ended at {loss:.4f}; {ratio}")
    if max(losses) > args.until:
        sys.exit(f"the target of {args.until} was missed by a seed")


if __name__ == "__main__":
    main()
