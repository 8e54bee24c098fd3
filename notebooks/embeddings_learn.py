# %% [markdown]
# # Watch embeddings learn
#
# A model with about 60,000 parameters trains on sentences from a small grammar. That takes a minute on one core. It is far too
# small to say anything about English, but it shows *how to inspect* a model. Replace `TEXT` by a text of your own.

# %%
import itertools
import random
import tempfile
from pathlib import Path

import numpy as np

import qkv

place = Path(tempfile.mkdtemp())
draws = random.Random(0)
animals, people, verbs = ["cat", "dog", "horse"], ["king", "queen", "baker"], ["sees", "likes", "meets"]
sentences = []
for _ in range(4000):
    who = draws.choice(animals + people)
    where = "in the stable" if who in animals else "at the table"
    sentences.append(f"the {who} {draws.choice(verbs)} the {draws.choice(animals + people)} {where} .")
TEXT = place / "little.txt"
TEXT.write_text("\n".join(sentences) + "\n")

# %%
run = qkv.train(
    TEXT,
    out=place / "run",
    tokenizer="word",
    steps=150,
    set={"d_model": 32, "n_layers": 2, "n_heads": 2, "n_ctx": 16, "batch_size": 16},
    report=False,
)
run.loss, run.summary["baselines_nats"]

# %% [markdown]
# Animals and people occur in the same positions of a sentence; only its end distinguishes them. Do their rows of W_E become
# similar? This is the cosine between rows, at the steps whose weights were saved:


# %%
def alike(step: int) -> tuple[float, float]:
    """Mean cosine within {animals} and {people}, and between them."""
    rows = {word: run.matrix(f"W_E[{word}]", at=step).numpy() for word in animals + people}

    def cosine(pairs):
        return float(np.mean([a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in pairs]))

    kinds = [[rows[word] for word in kind] for kind in (animals, people)]
    within = [pair for kind in kinds for pair in itertools.combinations(kind, 2)]
    return cosine(within), cosine(itertools.product(*kinds))


for step in sorted(run.snapshots()):
    within, between = alike(step)
    print(f"step {step:4d}   within a kind {within:+.2f}   between the kinds {between:+.2f}")

# %% [markdown]
# How far did W_E move, compared with the matrices of attention? Drift is relative to the initial weights. It is not evidence of
# learning by itself: matrices also move in the random-label control of every report (labels drawn uniformly at every step).

# %%
for address, series in run.history("W_E,L*.W_[QKVO]", "drift").items():
    print(address, round(float(series.value[-1]), 3))
