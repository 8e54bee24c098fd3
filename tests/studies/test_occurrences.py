"""Occurrences of tokens against the model itself, and what probes of identity find where the answer is known."""

import dataclasses

import numpy as np
import pytest
import torch

from qkv.errors import SourceError
from qkv.studies.engine.training import run_trial
from qkv.studies.probes.identity import hidden_identity, identity
from qkv.studies.probes.occurrences import occurrences
from qkv.studies.question import Ask
from qkv.studies.questions import find
from qkv.studies.synthetic import streams


@pytest.mark.parametrize("task", ["causal", "masked"])
def test_occurrences_of_a_text_are_its_tokens_in_order_whatever_the_task_hides(task, small_text, untrained):
    finished = untrained(small_text, task, tokenizer="char")
    seen = occurrences(finished, 300)
    special = list(finished.corpus.tokenizer.special.values())
    text = finished.corpus.val.ids.astype(np.int64)
    text = text[~np.isin(text, special)]
    assert np.array_equal(seen.ids, text[: len(seen.ids)]) and 300 <= len(seen.ids) <= 300 + 2048
    assert np.array_equal(seen.windows, np.arange(len(seen.ids)) // 16)
    rows, places = (finished.parts.catalogue.view(name).detach().numpy() for name in ("W_E", "W_pos"))
    np.testing.assert_allclose(seen.vectors[0], rows[seen.ids] + places[np.arange(len(seen.ids)) % 16], atol=1e-6)
    window = torch.from_numpy(seen.ids[16:32])[None]
    _, record = finished.model.forward_recorded(window)
    for i in (1, 2):
        np.testing.assert_allclose(seen.vectors[i, 16:32], record[f"L{i - 1}.resid_post"][0].detach(), atol=1e-5)


def test_occurrences_of_labelled_texts_are_those_of_each_text_by_itself(labelled, untrained):
    finished = untrained(labelled, "classify", stream="labelled", tokenizer="word")
    seen, part = occurrences(finished, 200), finished.corpus.val
    texts = list(dict.fromkeys(seen.windows.tolist()))[:5]
    special = list(finished.corpus.tokenizer.special.values())
    for number in texts:
        ids = part.tokens.document(number)[:16].astype(np.int64)
        _, record = finished.model.forward_recorded(torch.from_numpy(ids)[None])
        told = ~np.isin(ids, special)
        here = seen.windows == number
        assert np.array_equal(seen.ids[here], ids[told])
        np.testing.assert_allclose(seen.vectors[2, here], record["L1.resid_post"][0].detach()[told], atol=1e-5)


def test_before_any_training_every_layer_names_the_token_and_a_hidden_one_is_named_by_none(small_text, untrained):
    finished = untrained(small_text, "masked", tokenizer="char")
    shown, hidden = identity(finished), hidden_identity(finished)
    assert min(shown[f"identity {i}"] for i in range(3)) > 99 > 60 > shown["chance 0"]
    assert shown["information 0"] == pytest.approx(shown["entropy"], abs=0.05)
    assert min(shown[f"nearest {i}"] for i in range(3)) > 70, "rows and positions are of one size"
    assert all(abs(hidden[f"hidden information {i}"]) < 0.05 for i in range(3))
    assert hidden["hidden classes"] >= 5 and identity(finished) == shown


def test_hidden_places_show_the_row_of_the_mask(small_text, untrained):
    finished = untrained(small_text, "masked", tokenizer="char", positions="none")
    seen = occurrences(finished, 500, hide=0.3, draws=2)
    mask = finished.corpus.tokenizer.special["[MASK]"]
    row = finished.parts.catalogue.view("W_E").detach().numpy()[mask]
    assert (seen.vectors[0] == row).all() and mask not in seen.ids
    assert len(seen.ids) == pytest.approx(0.6 * len(occurrences(finished, 500).ids), rel=0.1)


@pytest.mark.parametrize("name", ["static-or-contextual", "token-identity", "end-task"])
def test_a_source_with_labels_adds_arms_that_classify_and_everything_is_measured(name, labelled):
    question = find(name)
    design = question.design(Ask(source=str(labelled), quick=True))
    read = {(arm, q) for c in design.contrasts for _, arm, q in c.terms}
    assert {arm for arm, _ in read if arm.startswith("classify")} == {
        a.name for a in design.arms if a.task == "classify"
    }
    measured = {}
    for arm in design.arms:
        if question.derive is not None or arm.task == "classify":
            trial = design.trial(arm, 1, 0, source=str(labelled), report=True)
            scale = dataclasses.replace(trial.scale, steps=2, batch_size=4, evaluations=1, d_model=16)
            measured[arm.name] = run_trial(dataclasses.replace(trial, scale=scale), None)["measures"]
    more = question.derive(list(measured.values())) if question.derive else [{}] * len(measured)
    measured = {arm: {**row, **extra} for (arm, row), extra in zip(measured.items(), more, strict=True)}
    assert not [(arm, q) for arm, q in sorted(read) if arm in measured and q not in measured[arm]]


def test_a_text_with_too_little_to_probe_is_refused_in_a_sentence(tmp_path, untrained):
    path = tmp_path / "short.txt"
    path.write_text(" ".join(streams.word(i) for i in range(400)))
    with pytest.raises(SourceError, match="fewer than two tokens stand 4 times"):
        identity(untrained(path, "causal", tokenizer="word"))
