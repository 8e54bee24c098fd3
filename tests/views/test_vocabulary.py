"""The words section: neighbours by plain cosines, one projection for all steps, and what a change of basis does."""

import base64

import numpy as np
import pytest
import torch

from qkv.errors import UserError
from qkv.models import build
from qkv.models.matrices import Catalogue
from qkv.views.report.report import read_report
from qkv.views.sections.vocabulary import in_context, near_token
from qkv.views.viewer import Viewer


def array(packed):
    return np.frombuffer(base64.b64decode(packed.data), {"float32": "<f4", "int32": "<i4"}[packed.dtype]).reshape(
        packed.shape
    )


@pytest.fixture(scope="module")
def section(run_folder):
    return read_report(run_folder.folder).words


@pytest.fixture(scope="module")
def viewer(run_folder):
    return Viewer(run_folder.folder)


def cosines(vectors):
    unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return unit @ np.swapaxes(unit, -1, -2)


def test_tokens_are_the_most_frequent_first_and_only_those_that_are_met(section, run_folder):
    counts = run_folder.counts
    assert list(section.counts) == sorted(counts[counts > 0].tolist(), reverse=True)
    assert [run_folder.tokenizer.token(i) for i in section.token_ids] == list(section.tokens)


def test_neighbours_are_those_of_plain_cosines(section, run_folder):
    table = run_folder.last["W_E"][list(section.token_ids)].astype(np.float64)
    expected = cosines(table)
    np.fill_diagonal(expected, -np.inf)
    order = np.argsort(-expected, axis=1, kind="stable")[:, :8]
    np.testing.assert_array_equal(array(section.nearest)[-1], order)
    np.testing.assert_allclose(array(section.cosines)[-1], np.take_along_axis(expected, order, 1), atol=1e-6)


def test_the_map_is_one_projection_for_all_steps(section, run_folder):
    plane = section.plane
    last = run_folder.last["W_E"].astype(np.float64)
    places = array(plane.places).astype(np.float64)
    assert len(plane.tokens) == len(last) and plane.counts == tuple(run_folder.counts)
    u, s, vt = np.linalg.svd(last - last.mean(0), full_matrices=False)
    np.testing.assert_allclose(np.abs(places[-1]), np.abs(u[:, :2] * s[:2]), atol=1e-4)
    assert plane.shares == pytest.approx(tuple(s[:2] ** 2 / (s**2).sum()), rel=1e-6)
    start = run_folder.start["W_E"].astype(np.float64) - last.mean(0)
    signs = np.sign((places[-1] * (u[:, :2] * s[:2])).sum(0))
    np.testing.assert_allclose(places[0], start @ vt[:2].T * signs, atol=1e-4)


def test_similarities_are_those_of_words_read_alone(section, run_folder):
    model = build(run_folder.config.model, 1)
    Catalogue(model).load_state({name: torch.tensor(values) for name, values in run_folder.last.items()})
    with torch.no_grad():
        _, record = model.eval().forward_recorded(torch.tensor(section.token_ids[: section.trio.n])[:, None])
    np.testing.assert_allclose(array(section.trio.x)[-1], cosines(record["L0.x"][:, 0].double().numpy()), atol=1e-6)
    for space, name in enumerate("qkv"):
        expected = cosines(record[f"L0.{name}"][:, :, 0].double().numpy().swapaxes(0, 1))
        np.testing.assert_allclose(array(section.trio.heads)[-1, space], expected, atol=1e-6)


def test_another_basis_is_shown_where_the_layout_leaves_it_free(section, make):
    assert section.trio.other_basis is None  # rotary positions and QK-norm tie it down
    section = read_report(make(layout={"positions": "learned", "qk_norm": False}).folder).words
    heads, other = array(section.trio.heads), array(section.trio.other_basis)
    assert other.shape == (*heads.shape[:1], 2, *heads.shape[2:])
    assert np.abs(other[-1] - heads[-1, :2]).max() > 0.3  # the same scores, other cosines


def test_heads_that_share_their_keys_share_the_other_basis_too(make):
    run = make(layout={"positions": "learned", "norm": "layer"}, n_kv_heads=2)
    k = array(read_report(run.folder).words.trio.other_basis)[:, 1]
    np.testing.assert_array_equal(k[:, [0, 2]], k[:, [1, 3]])
    assert not np.allclose(k[:, 0], k[:, 2])


def test_neighbours_of_any_token_among_all_rows(viewer, run_folder):
    found = near_token(viewer, "e", None)
    row = run_folder.tokenizer.readable["e"]
    expected = cosines(run_folder.last["W_E"].astype(np.float64))[row]
    expected[row] = -np.inf
    order = np.argsort(-expected, kind="stable")[:12]
    assert list(found.tokens) == [run_folder.tokenizer.token(int(i)) for i in order]
    np.testing.assert_allclose(array(found.cosines), expected[order], atol=1e-6)
    with pytest.raises(UserError, match="'et' is 2 tokens here; expected one"):
        near_token(viewer, "et", None)


def test_contextual_neighbours_are_other_tokens_of_the_text(viewer, run_folder):
    text = "the day and the night"
    found = in_context(viewer, text, 4, None)
    assert "".join(found.tokens) == text and found.layers[0] == "embed" and found.layers[-1] == "norm_f"
    model = build(run_folder.config.model, 1)
    Catalogue(model).load_state({name: torch.tensor(values) for name, values in run_folder.last.items()})
    with torch.no_grad():
        _, record = model.eval().forward_recorded(torch.as_tensor(run_folder.tokenizer.encode(text))[None])
    for layer, name in enumerate(found.layers):
        table = cosines(record[name][0].double().numpy())
        mean = table[~np.eye(len(text), dtype=bool)].mean()
        assert array(found.mean_cosine)[layer] == pytest.approx(mean, abs=1e-6)
        table[4, 4] = -np.inf
        best = int(np.argmax(table[4]))
        assert array(found.cosines)[layer, 0] == pytest.approx(table[4, best], abs=1e-6)
    with pytest.raises(UserError, match="no token 99"):
        in_context(viewer, text, 99, None)
