"""Pictures of weights: reductions are what they say, exact blocks are exact, gaps stay gaps."""

import base64

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from qkv.views.sections.matrices import Snapshots, _exact, blocks_rms, matrices_section, role_of, short_kind

HEADS = {"W_Q": 4, "W_K": 4, "W_V": 4, "W_O": 4}


def values(packed):
    stored = np.frombuffer(base64.b64decode(packed.data), dtype={"float32": "<f4", "uint8": "u1"}[packed.dtype])
    return stored.reshape(packed.shape) * packed.scale


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(1, 4))
def test_a_block_is_the_root_mean_square_of_its_weights(rows, columns, high, wide):
    matrix = np.random.default_rng(rows * 10 + columns).normal(size=(rows, columns))
    found = blocks_rms(matrix, (high, wide))
    for i in range(found.shape[0]):
        for j in range(found.shape[1]):
            part = matrix[i * high : (i + 1) * high, j * wide : (j + 1) * wide]
            np.testing.assert_allclose(found[i, j], np.sqrt((part**2).mean()), rtol=1e-12)


def test_pictures_show_the_weights_of_their_step(run_folder):
    snapshots = Snapshots(run_folder.folder, 1000)
    section = matrices_section(snapshots, HEADS)
    assert section.steps[0] == 0 and section.steps[-1] == 1000
    picture = next(item for item in section.items if item.address == "L1.W_V")
    for index, step in ((0, 0), (-1, 1000)):
        weights = snapshots.read("L1.W_V", step)
        expected = blocks_rms(weights, picture.block)
        np.testing.assert_allclose(values(picture.size)[index], expected, atol=picture.size.scale * 0.5001)
    assert values(picture.change)[0].max() == 0
    moved = run_folder.last["L1.W_V"] - run_folder.start["L1.W_V"]
    np.testing.assert_allclose(
        values(picture.change)[-1], blocks_rms(moved, picture.block), atol=picture.change.scale * 0.5001
    )


def test_exact_blocks_hold_the_stored_bits(run_folder):
    section = matrices_section(Snapshots(run_folder.folder, 1000), HEADS)
    for item in section.items:
        cut = np.ix_(item.exact.rows, item.exact.columns)
        assert values(item.exact.last).astype(np.float32).tobytes() == run_folder.last[item.address][cut].tobytes()
        assert values(item.exact.start).astype(np.float32).tobytes() == run_folder.start[item.address][cut].tobytes()


def test_matrices_come_in_the_order_of_the_computation(run_folder):
    addresses = [item.address for item in matrices_section(Snapshots(run_folder.folder, 1000), HEADS).items]
    assert addresses[0] == "W_E" and addresses[-1] == "W_U"
    assert addresses[1:5] == ["L0.W_Q", "L0.W_K", "L0.W_V", "L0.W_O"]


def test_what_comes_out_comes_after_the_layers(tmp_path):
    names = ("W_cls", "W_transform", "L1.W_in", "W_U", "W_E", "L0.W_Q", "W_type")
    save_file({name: np.ones((4, 4), np.float32) for name in names}, tmp_path / "model.safetensors")
    addresses = [item.address for item in matrices_section(Snapshots(tmp_path, 0), HEADS).items]
    assert addresses == ["W_E", "W_type", "L0.W_Q", "L1.W_in", "W_transform", "W_U", "W_cls"]


def test_without_a_start_there_is_no_change_and_no_invented_one(make):
    run = make(snapshots=False)
    section = matrices_section(Snapshots(run.folder, 1000), HEADS)
    assert section.steps == (1000,)
    assert all(item.change is None and item.exact.start is None for item in section.items)


def test_torn_and_foreign_snapshots_are_left_out(make):
    run = make()
    (run.folder / "checkpoints" / "step-00000004" / "model.safetensors").write_bytes(b"\x00" * 40)
    save_file({"W_E": np.zeros((2, 2), np.float32)}, run.folder / "checkpoints" / "step-00000016" / "model.safetensors")
    assert Snapshots(run.folder, 1000).steps == [0, 1, 64, 256, 1000]


def test_no_weights_give_no_section(tmp_path):
    assert matrices_section(Snapshots(tmp_path, None), HEADS) is None


def test_pictures_fit_their_budget(run_folder):
    snapshots = Snapshots(run_folder.folder, 1000)
    section = matrices_section(snapshots, HEADS, block_bytes=30_000)
    assert sum(len(item.size.data) + len(item.change.data) for item in section.items) <= 30_000 * 1.05
    assert max(max(item.size.shape[1:]) for item in section.items) <= 12


def test_weights_one_by_one_fit_their_budget_and_say_what_is_not_there(run_folder):
    snapshots = Snapshots(run_folder.folder, 1000)
    small, whole = (matrices_section(snapshots, HEADS, exact_bytes=n) for n in (150_000, 10_000_000))
    side = len(small.items[0].exact.rows)
    assert 16 <= side < 48
    for item in small.items:
        assert len(item.exact.rows) == min(side, item.shape[0]) and len(item.exact.columns) == min(side, item.shape[1])
        assert f"A file has room for {side} × {side} of each matrix" in item.exact.chosen
    assert sum(len(item.exact.start.data) + len(item.exact.last.data) for item in small.items) <= 150_000 * 1.05
    for item in whole.items:
        assert (len(item.exact.rows), len(item.exact.columns)) == item.shape
        assert item.exact.chosen == "The whole matrix, every weight as stored."


def test_rows_of_a_matrix_that_did_not_move_are_not_said_to_have_moved_furthest():
    matrix = np.ones((30, 20), dtype=np.float32)
    assert _exact(matrix, matrix, 16).chosen.startswith("The first 16 rows and 16 columns, every weight")
    assert _exact(matrix, 2 * matrix, 16).chosen.startswith("The 16 rows and 16 columns that moved furthest")


def test_every_kind_has_its_colour():
    expected = {
        "W_E": "E", "W_U": "E", "W_pos": "E", "b_U": "E", "L0.W_Q": "Q", "dec.L1.cross.W_K": "K", "L0.b_V": "V",
        "L0.W_O": "O", "L0.W_in": "MLP", "L0.W_gate": "MLP", "L0.b_out": "MLP", "L0.norm1.gain": "norm",
        "norm_f.bias": "norm", "L0.qnorm.gain": "norm",
    }  # fmt: skip
    assert {address: role_of(short_kind(address)) for address in expected} == expected
