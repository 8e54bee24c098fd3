"""A positive control: word vectors made alike on purpose where words occur together.

One table E and a sigmoid of e_i . e_j: neighbours are pulled together, random pairs pushed apart (skip-gram with
negative sampling, Mikolov et al. 2013, arXiv 1310.4546, with input and output vectors tied). Self-attention models are
trained to predict, which asks no such thing; if the measure of a study cannot see collocation here, it is blind.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from qkv.randomness import generator
from qkv.recipe import Parts
from qkv.studies.engine.design import Trial
from qkv.studies.engine.training_log import Trained
from qkv.training.record import Observer

_NEGATIVES = 4


def train_contrastive(trial: Trial, parts: Parts, watchers: Sequence[Observer]) -> Trained:
    """Train W_E alone, as long and on as many tokens as a training of the loop; the rest stays at its start."""
    table = parts.catalogue.entry("W_E").parameter
    corpus: Any = parts.corpus
    ids = np.asarray(corpus.train.ids, dtype=np.int64)
    scale, losses = trial.scale, []
    optimizer = torch.optim.Adam([table], lr=trial.lr)
    for step in range(scale.steps):
        draws = generator(trial.seed, "contrastive", step)
        places = draws.integers(len(ids) - 1, size=scale.batch_size * scale.n_ctx)
        others = ids[draws.integers(len(ids), size=(len(places), _NEGATIVES))]
        first, second = (torch.from_numpy(ids[places + shift]) for shift in (0, 1))
        e = F.embedding(first, table)
        near = (e * F.embedding(second, table)).sum(-1)
        far = torch.einsum("bd,bnd->bn", e, F.embedding(torch.from_numpy(others), table))
        loss = F.softplus(-near).mean() + F.softplus(far).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    table.grad = None
    last = losses[-max(1, len(losses) // 10) :]
    return Trained(train_loss=sum(last) / len(last), steps=scale.steps)
