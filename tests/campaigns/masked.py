"""The loss on hidden tokens of `qkv train --task masked` beside transformers' BERT of the same size and minutes.

    python tests/campaigns/masked.py wikitext-2/train.txt --val wikitext-2/valid.txt --minutes 5

First `qkv train --task masked --minutes M` with default settings, the whole command. Then `BertForMaskedLM` with random
weights and as nearly as many parameters as its width allows, on the same tokenizer, windows and hidden tokens of every
step, for M minutes of its training loop alone: imports, data and evaluation are not counted. It is trained as is usual
for it: AdamW, weight decay 0.01, a tenth of warm-up, linear decay to 0 at the last minute, gradients clipped at 1, no
dropout, in the precision that qkv chose. `--rates` are tried one after another, M minutes each, and its best is what
counts. Both are asked about the same 15 % of the validation tokens.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from command import fresh, machine, qkv


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--val", type=Path)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--rates", default="5e-4,1e-3")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(machine())
    out = fresh() / "run"
    words = ["train", str(args.text), "--task", "masked", "--minutes", str(args.minutes), "--seed", str(args.seed)]
    words += ["--val", str(args.val)] if args.val else []
    seconds, ours = qkv(*words, "--out", str(out))
    print(
        f"qkv: {ours['val_loss']:.4f} nats per hidden token, {ours['parameters']:,} parameters, {ours['steps']} steps,"
        f" {ours['tokens']:,} tokens, {seconds:.0f} s in all; baselines {ours['baselines']}",
        flush=True,
    )
    theirs = [Theirs(out, args.seed).train(float(rate), args.minutes) for rate in args.rates.split(",")]
    print(f"difference, BERT's best less qkv's: {min(theirs) - ours['val_loss']:.4f} nats per hidden token")


class Theirs:
    """BERT on the data of a run."""

    def __init__(self, run: Path, seed: int) -> None:
        from qkv import api

        loaded = api.load(run)
        self.task, self.config, self.seed = loaded.task, loaded.config, seed
        self.corpus = loaded.corpus()
        self.wanted = sum(parameter.numel() for parameter in loaded.model.parameters())

    def train(self, rate: float, minutes: float) -> float:
        """Nats per hidden validation token after so many minutes of training at that peak rate."""
        torch.manual_seed(self.seed)
        model = self.build()
        decayed = [p for p in model.parameters() if p.ndim > 1]
        others = [p for p in model.parameters() if p.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=rate)
        n, sizes, step = self.config.training.batch_size, self.config.model.sizes.resolved(), 0
        model.train()
        began = time.perf_counter()
        while (gone := (time.perf_counter() - began) / (60 * minutes)) < 1:
            for group in optimizer.param_groups:
                group["lr"] = rate * min(gone / 0.1, (1 - gone) / 0.9)
            batch = self.task.train_batch(self.corpus, sizes, self.seed, step, np.arange(step * n, (step + 1) * n))
            self.loss(model, batch).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
        nats = self.evaluate(model)
        print(
            f"BERT at rate {rate:g}: {nats:.4f} nats per hidden token, {sum(p.numel() for p in model.parameters()):,}"
            f" parameters, {step} steps, {step * n * sizes.n_ctx:,} tokens in {minutes:g} minutes",
            flush=True,
        )
        return nats

    def build(self) -> Any:
        """A BERT as deep as the run's model, heads as wide, its width the one that comes nearest in parameters."""
        from transformers import BertConfig, BertForMaskedLM

        sizes = self.config.model.sizes.resolved()
        found = []
        for heads in range(1, 64):
            config = BertConfig(
                vocab_size=sizes.d_vocab,
                hidden_size=heads * sizes.d_head,
                num_hidden_layers=sizes.n_layers,
                num_attention_heads=heads,
                intermediate_size=4 * heads * sizes.d_head,
                max_position_embeddings=sizes.n_ctx,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
            with torch.device("meta"):
                n = sum(parameter.numel() for parameter in BertForMaskedLM(config).parameters())
            found.append((abs(n - self.wanted), heads, config))
            if n > self.wanted:
                break
        return BertForMaskedLM(min(found, key=lambda each: each[:2])[2])

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        """Mean nats of the hidden tokens, as the library computes it from labels."""
        labels = torch.full(batch.inputs.shape, -100).flatten()
        labels[batch.positions] = batch.targets
        mask = None if batch.mask is None else batch.mask.long()
        with self.config.machine.autocast():
            return model(batch.inputs, attention_mask=mask, labels=labels.view_as(batch.inputs)).loss

    @torch.no_grad()
    def evaluate(self, model: Any) -> float:
        """Over the whole validation part, hidden as qkv hides it."""
        model.eval()
        total, n = 0.0, 0
        for batch in self.task.val_batches(self.corpus, self.config.model.sizes, 32):
            total += float(self.loss(model, batch)) * batch.n_targets
            n += batch.n_targets
        return total / n


if __name__ == "__main__":
    main()
