"""Perplexity by words of a causal model of word pieces on WikiText-2's test text, beside Kneser-Ney n-grams of words.

    python tests/campaigns/words.py wikitext-2 --minutes 60
    python tests/campaigns/words.py wikitext-2 --run runs/train-1       # of a run that is there
    python tests/campaigns/words.py wikitext-2 --ngrams                 # the n-grams alone, half a minute

The folder holds train.txt, valid.txt and test.txt. The model trains on the first, keeps the weights that are best on
the second, and is asked once about the third. Perplexity by words is exp(N / W): N the nats of the whole test text,
word piece by word piece (the first at their mean), W its words between white space plus one for every line end, 245,569
here, as in all figures of this text. The n-grams are of the same words and line ends, fitted to train.txt alone; words
that only the test text has share the end of their chain, the uniform distribution, with all others.
"""

import argparse
import math
import time
from pathlib import Path

import numpy as np
from command import fresh, machine, qkv


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], help="passed on to qkv train")
    parser.add_argument("--run", type=Path)
    parser.add_argument("--ngrams", action="store_true")
    args = parser.parse_args()
    print(machine())
    ngrams(args.folder)
    if args.ngrams:
        return
    run = args.run
    if run is None:
        run = fresh() / "run"
        words = ["train", str(args.folder / "train.txt"), "--val", str(args.folder / "valid.txt")]
        words += ["--minutes", str(args.minutes), "--seed", str(args.seed), "--out", str(run)]
        seconds, found = qkv(*words, *(word for value in args.set for word in ("--set", value)))
        print(
            f"{found['parameters']:,} parameters, {found['steps']} steps, {found['tokens']:,} tokens, best at step"
            f" {found['best_step']}: {found['bits_per_byte']:.4f} bits per byte of valid.txt; {seconds:.0f} s in all"
        )
    _, found = qkv("eval", str(run), str(args.folder / "test.txt"))
    low, high = found["word_perplexity_interval"]
    print(
        f"test.txt: perplexity by words {found['word_perplexity']:.1f} ({low:.1f} to {high:.1f} over windows),"
        f" {found['bits_per_byte']:.4f} bits per byte"
    )


def ngrams(folder: Path) -> None:
    """Perplexity of orders 1 to 5, with one discount an order and with three."""
    from qkv.data.baseline.ngrams import ngram_losses

    numbers: dict[str, int] = {}
    train, test = (_ids(folder / name, numbers) for name in ("train.txt", "test.txt"))
    unseen = int((~np.isin(test, train)).sum())
    print(f"{len(train):,} training and {len(test):,} test words, line ends in them; {unseen} only in the test text")
    for discounts, name in ((1, "Kneser-Ney"), (3, "modified Kneser-Ney")):
        began = time.perf_counter()
        found = [math.exp(nats.mean()) for nats in ngram_losses(train, test, len(numbers), 5, discounts)]
        orders = ", ".join(f"{order}: {value:.1f}" for order, value in enumerate(found, 1))
        print(f"{name}, perplexity by order: {orders} ({time.perf_counter() - began:.0f} s)", flush=True)


def _ids(path: Path, numbers: dict[str, int]) -> np.ndarray:
    """Words and line ends of a file as numbers: int64 [n]."""
    lines = path.read_text(encoding="utf-8").splitlines()
    words = (word for line in lines for word in [*line.split(), "<eos>"])
    return np.fromiter((numbers.setdefault(word, len(numbers)) for word in words), dtype=np.int64)


if __name__ == "__main__":
    main()
