"""Probes of order against what is known: planted positions, and models that cannot or do not look at order."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from qkv.randomness import generator
from qkv.studies.probes.positions import _hidden, loss_by_position, order, position
from qkv.studies.synthetic.streams import word

LAYERS = range(2)


class Planted:
    """A model whose vectors are given by a function of the windows."""

    def __init__(self, vectors) -> None:
        self._vectors = vectors

    def hidden(self, windows, see):
        see(None, self._vectors(windows))
        return self._vectors(windows)


def strengthened(finished, *kinds: str, factor: float = 8.0):
    """The same model with some matrices so large that what they do shows at the start."""
    with torch.no_grad():
        for entry in finished.parts.catalogue:
            if entry.kind in kinds:
                entry.parameter.mul_(factor)
    return finished


def with_vectors(finished, vectors):
    """The same with a model of which these are the vectors."""
    return dataclasses.replace(finished, parts=dataclasses.replace(finished.parts, model=Planted(vectors)))


def test_a_position_that_stands_in_the_vectors_is_read_and_one_that_does_not_is_not(finish):
    finished = finish()
    places = torch.arange(16.0).expand(64, 16)
    noise = torch.randn(64, 16, 6, generator=torch.Generator().manual_seed(1))

    def along_a_line(windows):
        return torch.cat([places[: len(windows), :, None] * 0.3 - 2, noise[: len(windows)]], dim=-1)

    found = position(with_vectors(finished, along_a_line))
    assert found["position 0"] == pytest.approx(1.0, abs=1e-6) == found["position 1"]
    one_hot = torch.eye(16).expand(64, 16, 16)
    found = position(with_vectors(finished, lambda windows: one_hot[: len(windows)]))
    assert found["position 1"] == pytest.approx(1.0, abs=1e-6) and found["named 1"] == 1.0
    found = position(with_vectors(finished, lambda windows: noise[: len(windows)]))
    assert abs(found["position 1"]) < 0.1 and found["named 1"] < 0.12
    halves = (places > 7.5).float()[..., None]
    found = position(with_vectors(finished, lambda windows: halves[: len(windows)]))
    assert found["position 0"] == pytest.approx(0.5), "which half it is in: off by 2 places instead of 4"


def test_without_positions_a_masked_model_knows_nothing_of_order(finish):
    layout = {"positions": "none", "start": "xavier"}
    finished = strengthened(finish("masked", layout=layout), "W_Q", "W_V", "W_U")
    found = position(finished)
    assert max(found[f"position {layer}"] for layer in range(3)) < 0.1
    assert order(finished)["order"] == pytest.approx(0.0, abs=1e-5)
    learned = strengthened(finish("masked", layout={"start": "xavier"}), "W_Q", "W_V", "W_U")
    strengthened(learned, "W_pos", factor=100)
    assert abs(order(learned)["order"]) > 1e-3 and position(learned)["position 0"] > 0.5


def test_rows_of_positions_are_read_where_they_are_added_and_a_mask_tells_them_too(finish):
    learned = strengthened(finish(), "W_pos", factor=100)
    assert position(learned)["position 0"] > 0.55
    none = strengthened(finish(layout={"positions": "none", "start": "xavier"}), "W_V")
    found = position(none)
    assert found["position 0"] < 0.1 < found["position 2"]


def test_a_model_that_looks_at_the_last_token_alone_does_not_care_for_order(finish):
    finished = strengthened(finish(layout={"start": "xavier"}), "W_V", "W_U")
    assert abs(order(finished)["order"]) > 1e-3
    with torch.no_grad():
        for layer in LAYERS:
            finished.parts.catalogue.entry(f"L{layer}.W_O").parameter.zero_()
    assert order(finished)["order"] == 0.0


def test_hidden_tokens_stay_where_they_are_and_the_others_are_the_same_in_another_order(finish):
    finished = finish("masked")
    mask = finished.corpus.tokenizer.special["[MASK]"]
    pairs = _hidden(finished)
    for batch, other in pairs:
        assert torch.equal(batch.inputs == mask, other.inputs == mask)
        assert torch.equal(batch.inputs.sort(dim=1).values, other.inputs.sort(dim=1).values)
        assert torch.equal(batch.targets, other.targets) and torch.equal(batch.positions, other.positions)
    assert np.mean([float((a.inputs != b.inputs).double().mean()) for a, b in pairs]) > 0.5


def test_without_positions_order_is_nothing_in_a_short_text_of_many_documents_too(finish, tmp_path):
    path = tmp_path / "texts.jsonl"
    draws = generator("tests", "documents")
    texts = [" ".join(word(int(i)) for i in draws.integers(300, size=20)) for _ in range(60)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    finished = strengthened(
        finish("masked", source=path, layout={"positions": "none", "start": "xavier"}), "W_Q", "W_V", "W_U"
    )
    (batch,) = finished.parts.task.val_batches(finished.corpus, finished.model.config.sizes, 64)
    assert batch.documents is not None and batch.mask is not None, "fewer windows than are read at once"
    assert any((a.inputs != b.inputs).any() for a, b in _hidden(finished))
    assert order(finished)["order"] == pytest.approx(0.0, abs=1e-5)


def test_the_loss_by_position_is_that_of_the_targets_there(finish):
    finished = strengthened(finish(), "W_pos", "W_U", factor=20)
    sums, counts = np.zeros(17), np.zeros(17)
    for batch in finished.parts.task.val_batches(finished.corpus, finished.model.config.sizes, 7):
        flat = torch.arange(batch.inputs.numel()) if batch.positions is None else batch.positions
        seen = (flat % 16 + 1).numpy()
        nats = finished.parts.task.score(finished.model, batch).nats.double().numpy()
        sums += np.bincount(seen, nats, minlength=17)
        counts += np.bincount(seen, minlength=17)
    stretches = {"1": [1], "2": [2], "3-4": [3, 4], "5-8": [*range(5, 9)], "9-16": [*range(9, 17)]}
    wanted = {f"loss at {name}": sums[at].sum() / counts[at].sum() for name, at in stretches.items()}
    assert loss_by_position(finished) == pytest.approx(wanted) and np.ptp(list(wanted.values())) > 0.05
