"""Attribution patching beside exact patching on three models: rank correlation and cost.

    python tests/campaigns/attribution.py TEXT

Trained here: a small model in 150 steps. Imported: a GPT-2 of random weights. A history: the last step of a GPT-NeoX
that a plain loop trains and saves. Pairs are windows of 32 tokens of the text that differ in one token; for each model
the medians over pairs of Spearman's rank correlation within a kind of site, and how many times as long exact patching
takes.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import transformers

import qkv
from qkv import api
from qkv.errors import UserError
from qkv.inspection.patching import MIXER, MLP, STREAM, Asked, patch
from qkv.inspection.research.pairs import Pair, attribute
from qkv.inspection.token_rows import rank_correlation

LENGTH, PAIRS, NATS = 32, 12, 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    text = parser.parse_args().text.read_text(encoding="utf-8")[:400_000]
    with tempfile.TemporaryDirectory() as home:
        for name, run in models(Path(home), text):
            print(f"| {name} | {' | '.join(figures(run, text))} |", flush=True)


def models(home: Path, text: str) -> Iterator[tuple[str, "qkv.Run"]]:
    """The three, one after another."""
    (home / "text.txt").write_text(text)
    torch.manual_seed(0)
    sizes = {"vocab_size": 256, "bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(**sizes, n_embd=128, n_layer=4, n_head=4, n_positions=64, initializer_range=0.1)
    transformers.GPT2LMHeadModel(config).save_pretrained(home / "gpt2")
    yield "random GPT-2", api.import_checkpoint(home / "gpt2", home / "imported")
    config = transformers.GPTNeoXConfig(
        **sizes, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=256,
        max_position_embeddings=64,
    )  # fmt: skip
    model = transformers.GPTNeoXForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    ids = torch.tensor(list(text.encode()))
    for step in range(151):
        if step % 50 == 0:
            model.save_pretrained(home / "series" / f"step{step}")
        windows = torch.stack([ids[at : at + 64] for at in torch.randint(len(ids) - 64, (16,))])
        model(input_ids=windows, labels=windows).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    yield "history (GPT-NeoX)", api.import_history(home / "series", home / "history")
    how = {"parameters": 150_000, "steps": 150, "seed": 0, "threads": 1, "report": False}
    yield "trained here", api.train(home / "text.txt", out=home / "own", **how)


def pairs_of(run: "qkv.Run", text: str) -> list[Pair]:
    """Windows that the model answers differently (0.5 nats or more) after one token of their second half is another."""
    ids = np.array(run.tokenizer.encode(text) if run.tokenizer is not None else list(text.encode()), dtype=np.int64)
    draw, pairs = np.random.default_rng(0), []
    while len(pairs) < PAIRS:
        at = draw.integers(len(ids) - LENGTH)
        one = ids[at : at + LENGTH]
        other = one.copy()
        other[LENGTH - 1 - draw.integers(LENGTH // 2)] = draw.choice(ids)
        first, second = (Asked(torch.as_tensor(x)[None], list(map(str, x)), LENGTH - 1) for x in (one, other))
        try:
            differs = patch(run.model, first, second, estimate=True).difference >= NATS
        except UserError:  # the same token, or answered alike
            continue
        pairs += [(first, second, None)] if differs else []
    return pairs


def figures(run: "qkv.Run", text: str) -> list[str]:
    """Parameters, median correlations by kind of site, that of means over pairs, and the two cost ratios."""
    pairs, kinds, took = pairs_of(run, text), {}, np.zeros(2)
    for first, second, _ in pairs:
        times = [time.perf_counter()]
        found = []
        for estimate in (False, True):
            found.append(patch(run.model, first, second, estimate=estimate))
            times.append(time.perf_counter())
        took += np.diff(times)
        exact, estimated = ({**one.shares, "heads": one.heads, "embedding": one.shares[STREAM][0]} for one in found)
        for kind in exact:
            a, b = (each[kind].numpy().ravel().round(9) for each in (estimated, exact))  # 0 but for rounding is a tie
            kinds.setdefault(kind, []).append(rank_correlation(a, b))
    medians = [
        np.median([x for x in kinds[kind] if x is not None]) for kind in ("heads", MIXER, MLP, STREAM, "embedding")
    ]
    of_set = attribute(run.model, pairs, exact=True)
    n = sum(p.numel() for p in run.model.parameters())
    return [
        f"{n / 1e6:.2f} M",
        *(f"{value:.2f}" for value in medians),
        f"{of_set.correlation:.2f}",
        f"{took[0] / took[1]:.1f}",
        f"{of_set.seconds[1] / of_set.seconds[0]:.1f}",
    ]


if __name__ == "__main__":
    main()
