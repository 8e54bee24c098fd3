"""`attention-or-lstm` as contextual encoders: what is measured of either, by hand, and what it stands beside."""

import numpy as np
import pytest
import torch

from qkv.studies.engine.design import Text
from qkv.studies.probes.contextual import contextual
from qkv.studies.probes.likeness import common_ids
from qkv.studies.probes.occurrences import occurrences
from qkv.studies.question import Ask
from qkv.studies.questions import find
from qkv.studies.questions.attention_or_lstm import KINDS


@pytest.fixture(params=list(KINDS))
def encoder(request, finish, long_text):
    """Either kind, of words, at its start."""
    text = Text(tokenizer="word", vocab=200)
    sizes = {"n_heads": 1, "val_tokens": 4096} if request.param == "LSTM" else {"val_tokens": 4096}
    return request.param, finish(text=text, source=long_text, layout=dict(KINDS[request.param]), **sizes)


def test_an_lstm_is_measured_on_its_outputs_and_attention_on_what_its_blocks_leave(encoder):
    kind, finished = encoder
    seen, model = occurrences(finished, 512), finished.model
    ids = torch.from_numpy(finished.corpus.val.ids[:16].astype(np.int64))[None]
    record = {}
    with torch.no_grad():
        hidden = model.hidden(ids, hook=lambda name, x: record.setdefault(name, x))
    real = ~np.isin(ids[0].numpy(), list(finished.corpus.tokenizer.special.values()))
    first = seen.vectors[:, seen.windows == 0]
    assert len(seen.vectors) == 3 and first.shape[1] == real.sum()
    for layer in range(2):
        assert np.allclose(first[layer + 1], record[f"L{layer}.resid_post"][0].numpy()[real], atol=1e-6)
    if kind == "LSTM":  # no norm, MLP or skip connection stands between
        assert np.allclose(first[-1], hidden[0].numpy()[real], atol=1e-6)
        assert np.allclose(first[-1], record["L1.mix_out"][0].numpy()[real], atol=1e-6)


def test_self_similarity_is_that_of_occurrences_less_that_of_different_words(encoder):
    _, finished = encoder
    seen, found = occurrences(finished, 8192), contextual(finished)
    words = common_ids(seen.ids, 8, 64)
    asked = np.isin(seen.ids, words)
    vectors, ids = seen.vectors[-1][asked].astype(np.float64), seen.ids[asked]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines, same = unit @ unit.T, ids[:, None] == ids
    pairs = ~np.eye(len(ids), dtype=bool)
    own = np.mean([cosines[same & pairs & (ids == word)[:, None]].mean() for word in words])
    others = cosines[~same].mean()
    assert found["self-similarity 2"] == pytest.approx(own - others, abs=1e-6)
    assert {f"{name} {layer}" for name in ("self-similarity", "in a window") for layer in range(3)} <= found.keys()


def test_the_two_are_compared_on_words_behind_what_they_learned_and_beside_their_starts():
    design = find("attention-or-lstm").design(Ask(named=("a text", "0" * 64)))
    asked = [c for c in design.contrasts if c.unit == "cosine"]
    assert [c.name for c in asked[:5]] == [
        "self-similarity: LSTM - attention", "self-similarity: words attention", "self-similarity: words LSTM",
        "self-similarity: words attention, by training", "self-similarity: words LSTM, by training",
    ]  # fmt: skip
    assert len(asked) == 10 and all(c.terms[0][2].endswith(f" {design.scale.n_layers}") for c in asked)
    for contrast in asked:
        trained = {arm for arm in contrast.arms if not arm.endswith(" at its start")}
        assert set(contrast.gates) == {f"learned ({arm})" for arm in trained}
    for kind in KINDS:
        arm, still = design.arm(f"words {kind}"), design.arm(f"words {kind} at its start")
        assert (still.text, still.layout, still.sizes) == (arm.text, arm.layout, arm.sizes) and still.trainer == "none"
        assert dict(design.texts)[arm.text].tokenizer == "word"
    assert design.primary.name == "LSTM - attention"
    quick = find("attention-or-lstm").design(Ask(named=("a text", "0" * 64), quick=True))
    assert not [c for c in quick.contrasts if c.unit == "cosine"]
