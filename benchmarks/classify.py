"""Accuracy of a classifier within a time budget, over seeds, beside TF-IDF with logistic regression on the same texts.

    python benchmarks/classify.py sst2/train.tsv sst2/dev.tsv --minutes 10 --seeds 3
    python benchmarks/classify.py sst2/train.tsv sst2/dev.tsv --pretrain wikitext-2/train.txt --minutes 20 \
        --pretrain-minutes 40

With --pretrain a masked model is trained first on that text (a folder may hold several) and every seed starts from it,
once fine-tuned and once with the body held. Accuracies are those of the best weights by validation loss.
"""

import argparse
from pathlib import Path

from command import fresh, machine, qkv, spread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("val", type=Path)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--pretrain", type=Path)
    parser.add_argument("--pretrain-minutes", type=float, default=40)
    args = parser.parse_args()
    print(machine())
    folder, ways = fresh(), {"from scratch": []}
    if args.pretrain:
        words = ["--task", "masked", "--minutes", str(args.pretrain_minutes), "--out", str(folder / "masked")]
        taken, masked = qkv("train", str(args.pretrain), *words)
        print(f"masked pretraining: {masked['val_loss']:.4f} nats per hidden token, {taken:.0f} s in all")
        start = ["--from", str(folder / "masked")]
        ways = {"fine-tuned": start, "body held": [*start, "--only", "head"]}
    for name, more in ways.items():
        figures, seconds = [], []
        for seed in range(1, args.seeds + 1):
            words = ["--task", "classify", "--val", str(args.val), "--minutes", str(args.minutes), "--seed", str(seed)]
            out = folder / f"{name.split()[0]}-{seed}"
            taken, found = qkv("train", str(args.train), *words, *more, "--out", str(out))
            figures.append(found["accuracy"])
            seconds.append(taken)
            low, high = found["accuracy_interval"]
            print(
                f"{name}, seed {seed}: accuracy {found['accuracy']:.4f} ({low:.4f} to {high:.4f}),"
                f" {found['val_loss']:.4f} nats at step {found['best_step']} of {found['steps']}, {taken:.0f} s in all"
            )
        print(f"{name}: accuracy {spread(figures)}, seconds {spread(seconds)}; baselines {found['baselines']}")


if __name__ == "__main__":
    main()
