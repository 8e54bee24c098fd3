"""Accuracy of an image transformer in a given time, beside a linear model and an RBF support vector machine.

    python tests/campaigns/images.py fashion-mnist --minutes 14 --seeds 3
    python tests/campaigns/images.py fashion-mnist --classical --images 10000

The first trains one run a seed with default settings and `flip`, the whole command in so many minutes, and prints the
test accuracy of its last weights (chosen by nothing) and of its best (chosen by the loss on the same images). The other
fits scikit-learn's models on that many training images (0: all; the support vector machine then takes half an hour).
"""

import argparse
import time
from pathlib import Path

from command import fresh, machine, qkv, spread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=14.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--classical", action="store_true")
    parser.add_argument("--images", type=int, default=10_000)
    args = parser.parse_args()
    print(machine())
    if args.classical:
        classical(args.folder, args.images)
        return
    best, last = [], []
    for seed in range(1, args.seeds + 1):
        out = str(fresh() / "run")
        words = ["train", str(args.folder), "--task", "image", "--minutes", str(args.minutes), "--seed", str(seed)]
        seconds, _ = qkv(*words, "--set", "flip=true", "--out", out)
        for weights, kept in (("best", best), ("last", last)):
            kept.append(qkv("eval", out, "--weights", weights)[1]["accuracy"])
        print(f"seed {seed}: best {best[-1]:.4f}, last {last[-1]:.4f}, {seconds:.0f} s", flush=True)
    print(f"test accuracy, last weights: {spread(last)}; best weights: {spread(best)}")


def classical(folder: Path, n: int) -> None:
    """Logistic regression and an RBF support vector machine on pixels in 0..1."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import SVC

    from qkv.data.images import load_images
    from qkv.randomness import generator

    images = load_images(str(folder))
    chosen = generator("image baselines").permutation(len(images.train))[: n or None]
    x, y = images.train.pixels[chosen].reshape(len(chosen), -1) / 255.0, images.train.labels[chosen]
    test = images.val.pixels.reshape(len(images.val), -1) / 255.0
    models = {
        "linear (logistic regression)": LogisticRegression(max_iter=100, C=0.1),
        "RBF support vector machine": SVC(C=10, gamma="scale"),
    }
    for name, model in models.items():
        began = time.perf_counter()
        accuracy = float((model.fit(x, y).predict(test) == images.val.labels).mean())
        print(f"{name} on {len(y):,} images: {accuracy:.4f} in {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
