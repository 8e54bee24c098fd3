"""Shared drift of two trainings from one start, by kind of matrix; see `qkv.inspection.shared_drift`."""

import numpy as np
import torch

from qkv.inspection.shared_drift import agreement, cosine, movement
from qkv.recipe import Parts
from qkv.studies.probes.registry import KINDS
from qkv.training.schedules import lr_scale


def shared(one: Parts, other: Parts) -> dict[str, float]:
    """Cosine of what two models that started alike have moved by, weight decay taken off: `shared KIND`, 0 by chance.

    Of each kind of `KINDS` over all layers together; `shared heads KIND` is the mean over its heads, each by itself,
    `shared rows KIND` that over the rows of a table that moved in both. A kind that one of them did not move has none.
    """
    schedule = one.config.training.schedule
    decayed = one.optimizer.decayed([lr_scale(step, schedule) for step in range(schedule.steps)])
    ends, found = (one.catalogue.state(), other.catalogue.state()), {}
    for name, kinds in KINDS.items():
        entries = [entry for entry in one.catalogue if entry.kind in kinds]
        moved = [[movement(one.start[e.address], end[e.address], decayed[e.address]) for e in entries] for end in ends]
        if not entries or not all(any(d.any() for d in each) for each in moved):
            continue
        found[f"shared {name}"] = float(cosine(*(torch.cat([d.flatten() for d in each])[None] for each in moved)))
        pieces = [agreement(e, *pair).pieces for e, *pair in zip(entries, *moved, strict=True) if e.divides]
        if pieces and np.isfinite(every := np.concatenate(pieces)).any():
            found[f"shared {'heads' if entries[0].n_heads else 'rows'} {name}"] = float(np.nanmean(every))
    return found
