"""Seconds per training: 24 seeds stacked in one model, beside 24 trainings of the loop one after the other.

    python tests/campaigns/stacked.py input.txt

One thread each, the textbook preset with AdamW, at the sizes of studies: `calibrate`'s, a quick run's and a full run's.
Both sides take turns, three times; printed are medians for one training of so many steps, start and validation
included, the ratio, and the largest difference between the losses of the two sides.
"""

import dataclasses
import statistics
import sys
import time

import torch

from qkv.studies.engine.design import Arm, Scale, Text, Trial
from qkv.studies.engine.stacked import losses_of
from qkv.studies.engine.training import run_trial
from qkv.studies.synthetic.streams import corpus

SIZES = {
    "calibrate: 1 x 8": Scale(d_model=8, n_layers=1, n_heads=1, n_ctx=16, batch_size=8, steps=60, val_tokens=1024),
    "quick: 2 x 64": Scale(d_model=64, n_layers=2, n_heads=2, n_ctx=64, batch_size=16, steps=20, val_tokens=2048),
    "full: 2 x 128": Scale(d_model=128, n_layers=2, n_heads=4, n_ctx=64, batch_size=16, steps=10, val_tokens=2048),
}
SEEDS, TURNS = 24, 3


def main(source: str) -> None:
    torch.set_num_threads(1)
    print("| size | steps | loop, s | stacked, s | loop / stacked | largest difference of losses |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, scale in SIZES.items():
        text = Text(tokenizer="char" if scale.d_model == 8 else "bpe", vocab=0 if scale.d_model == 8 else 512)
        trial = Trial(
            arm=Arm(name="trained", what="", optimizer="adamw"), text=text, scale=scale, source=source,
            source_sha256=corpus(text, source, scale.val_tokens, None).sha256, lr=0.003, seed=1, software="",
        )  # fmt: skip
        trials = [dataclasses.replace(trial, seed=seed) for seed in range(1, SEEDS + 1)]
        losses_of(trials)  # traced once a process
        run_trial(trial, None)
        loop, stacked, apart = [], [], 0.0
        for _ in range(TURNS):
            began = time.perf_counter()
            ones = [run_trial(each, None)["loss"] for each in trials]
            turned = time.perf_counter()
            together = losses_of(trials)
            loop.append((turned - began) / SEEDS)
            stacked.append((time.perf_counter() - turned) / SEEDS)
            apart = max(apart, *(abs(a - b) for a, b in zip(ones, together, strict=True)))
        a, b = statistics.median(loop), statistics.median(stacked)
        print(f"| {name} | {scale.steps} | {a:.3f} | {b:.3f} | {a / b:.2f} | {apart:.1e} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
