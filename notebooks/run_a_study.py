# %% [markdown]
# # Run a study
#
# Does freezing the embeddings cost anything? One pair of trainings cannot say, because another seed may reverse the result. A
# study trains pairs that differ in one thing only, tunes the learning rate of each arm in every replicate, and gives a verdict
# with an interval.
#
# `quick=True` takes three minutes and detects only large effects. If the main question needs longer, it is refused, with the
# `minutes=` that suffice. A full study takes up to two and a half hours.

# %%
import random
import tempfile
from pathlib import Path

import qkv

place = Path(tempfile.mkdtemp())
draws = random.Random(0)
nouns, verbs, places = (
    ["the cat", "a dog", "the king", "a queen"],
    ["sees", "likes", "meets"],
    ["home", "the sea", "a tree"],
)
lines = [
    f"{draws.choice(nouns)} {draws.choice(verbs)} {draws.choice(nouns)} at {draws.choice(places)}." for _ in range(8000)
]
(place / "my.txt").write_text("\n".join(lines) + "\n")

# %%
verdict = qkv.study("frozen-embeddings", place / "my.txt", quick=True, out=place, say=print)
print(verdict["sentence"])

# %% [markdown]
# This is the effect of the main question, its interval, and the margin of "no difference":

# %%
{key: verdict[key] for key in ("verdict", "effect", "low", "high", "unit", "margin", "seeds", "p")}

# %% [markdown]
# A log lists every training, including those for tuning. It is in the folder of the page with the curves:

# %%
print(verdict["trainings"], "trainings;", verdict["run"])
print("It would be wrong if:", verdict["falsified_by"])
