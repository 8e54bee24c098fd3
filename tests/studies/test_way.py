"""The way of a training: where it ends, and when half of it is behind."""

import copy
import dataclasses

import numpy as np
import pytest
import torch


def test_the_way_of_a_training_ends_where_it_ends_and_half_of_it_is_told_by_its_distances(finish):
    """The looks against the weights themselves, the half against NumPy's interpolation of those distances."""
    from qkv.inspection.what_moved import what_moved
    from qkv.models.matrices import Catalogue
    from qkv.studies.probes.registry import PROBES
    from qkv.studies.probes.watchers import PERIODS, Way

    started, way = finish(steps=40), Way()
    parts = started.parts
    parts.train(observers=[way])
    finished = dataclasses.replace(started, watched={"order of movement": way, "what moved when": way})
    last, start = parts.catalogue.state(), parts.start
    assert way.looks[-1][0] == 40 and [len(way.states), len(PERIODS)] == [4, 3]
    for address, weights in last.items():
        assert way.looks[-1][1][address] == pytest.approx(float((weights - start[address]).double().norm()), rel=1e-6)
        assert torch.equal(way.states[-1][address], weights) and torch.equal(way.states[0][address], start[address])
    found = PROBES["order of movement"](finished)
    for name, kinds in (("W_Q", {"W_Q"}), ("MLP", {"W_in", "W_out"}), ("L1", None), ("W_E", {"W_E"})):
        members = [e.address for e in parts.catalogue if (e.layer == 1 if kinds is None else e.kind in kinds)]
        far = [sum(moved[a] ** 2 for a in members) ** 0.5 for _, moved in way.looks]
        steps, after = [step for step, _ in way.looks], next(i for i, x in enumerate(far) if x >= far[-1] / 2)
        pair = slice(after - 1, after + 1)
        scale = steps[pair] if after == 1 else np.log(steps[pair])
        at = np.interp(far[-1] / 2, far[pair], scale)
        assert found[f"half way {name}"] == pytest.approx(at if after == 1 else np.exp(at)), name
    model = parts.model
    shares = PROBES["what moved when"](finished)
    Catalogue(model).load_state(way.states[1])
    before = copy.deepcopy(model)
    Catalogue(model).load_state(way.states[2])
    after = copy.deepcopy(model)
    texts = torch.from_numpy(finished.corpus.val.ids[: 4 * 16].astype(np.int64)).view(4, 1, 16)
    expected = [
        next(p for p in what_moved(before, after, text) if p.address == "L1.q").shares["matrix"] for text in texts
    ]
    assert shares["to the half L1.q matrix"] == pytest.approx(np.mean(expected))
    for period in PERIODS:
        whole = sum(shares[f"{period} L0.k {cause}"] for cause in ("encodings", "matrix", "both"))
        assert whole == pytest.approx(1)
