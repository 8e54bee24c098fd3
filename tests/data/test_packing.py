"""Windows are pure functions of their numbers, and an epoch sees each of them once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.data.packing import (
    n_windows,
    pack_rows,
    train_starts,
    train_window,
    val_windows,
    window_documents,
)
from qkv.errors import SourceError
from qkv.tokenizers.tokens import Tokens


def counting(n: int) -> Tokens:
    """Tokens whose ids are their positions."""
    return Tokens(ids=np.arange(n, dtype=np.uint32), offsets=np.array([0, n]), n_bytes=n)


@settings(deadline=None, max_examples=60)
@given(n_ctx=st.integers(1, 40), extra=st.integers(1, 700), seed=st.integers(0, 5))
def test_in_an_epoch_every_window_comes_once_and_no_target_twice(n_ctx: int, extra: int, seed: int) -> None:
    tokens = counting(n_ctx + extra)
    n = n_windows(tokens, n_ctx)
    for epoch in range(2):
        windows = train_window(tokens, n_ctx, seed, np.arange(epoch * n, (epoch + 1) * n))
        assert windows.dtype == np.int64 and windows.shape == (n, n_ctx + 1)
        assert (np.diff(windows, axis=1) == 1).all()
        assert len(np.unique(windows[:, 1:])) == windows[:, 1:].size
    assert windows[:, 1:].size > len(tokens) - 3 * n_ctx


def test_windows_do_not_depend_on_how_they_are_asked_for() -> None:
    tokens = counting(5000)
    together = train_window(tokens, 16, 3, np.arange(2000))
    backwards = train_window(tokens, 16, 3, np.arange(2000)[::-1])[::-1]
    one_by_one = np.concatenate([train_window(tokens, 16, 3, np.array([i])) for i in range(0, 2000, 97)])
    assert (together == backwards).all()
    assert (together[::97] == one_by_one).all()
    assert train_window(tokens, 16, 3, np.array([], dtype=np.int64)).shape == (0, 17)


def test_epochs_and_seeds_shift_and_order_windows_differently() -> None:
    tokens = counting(5000)
    n = n_windows(tokens, 16)
    first, second = train_starts(tokens, 16, 1, np.arange(n)), train_starts(tokens, 16, 1, np.arange(n, 2 * n))
    other = train_starts(tokens, 16, 2, np.arange(n))
    assert not (first == second).all() and not (first == other).all()
    assert len({int(train_starts(tokens, 16, 1, np.array([e * n]))[0]) % 16 for e in range(40)}) > 8


@given(n=st.integers(2, 200), n_ctx=st.integers(1, 30), batch=st.integers(1, 9))
def test_validation_predicts_each_token_after_the_first_exactly_once(n: int, n_ctx: int, batch: int) -> None:
    seen, total = [], 0
    for windows, real in val_windows(counting(n), n_ctx, batch):
        assert windows.shape[1] == n_ctx + 1 and real.shape == (len(windows), n_ctx) and len(windows) <= batch
        assert (windows[:, 1:][real] - windows[:, :-1][real] == 1).all()
        assert (windows[:, 1:][~real] == 0).all()
        seen += windows[:, 1:][real].tolist()
        total += len(windows)
    assert seen == list(range(1, n))
    assert total == -(-(n - 1) // n_ctx)


def test_windows_know_the_document_of_each_position() -> None:
    tokens = Tokens(ids=np.zeros(10, np.uint8), offsets=np.array([0, 4, 4, 9, 10]), n_bytes=10)
    found = window_documents(tokens, np.array([0, 3]), 5)
    assert found.tolist() == [[0, 0, 0, 0, 2, 2], [0, 2, 2, 2, 2, 2]]
    assert window_documents(tokens, np.array([8]), 3).tolist() == [[2, 3, 4, 4]]


def test_a_text_smaller_than_a_window_is_refused_with_both_lengths() -> None:
    with pytest.raises(SourceError, match="has 16 tokens, fewer than one window of 17.*n_ctx=15"):
        n_windows(counting(16), 16)
    with pytest.raises(SourceError, match="the validation text has 1 tokens"):
        next(val_windows(counting(1), 16, 4))


def test_tokens_mapped_from_a_file_give_the_same_windows(tmp_path) -> None:
    ids = np.random.default_rng(0).integers(0, 500, 4000).astype(np.uint16)
    ids.tofile(tmp_path / "ids")
    mapped = Tokens(ids=np.memmap(tmp_path / "ids", np.uint16, "r"), offsets=np.array([0, 4000]), n_bytes=1)
    held = Tokens(ids=ids, offsets=np.array([0, 4000]), n_bytes=1)
    numbers = np.arange(50)
    assert (train_window(mapped, 32, 0, numbers) == train_window(held, 32, 0, numbers)).all()


@given(st.lists(st.integers(1, 20), min_size=1, max_size=60), st.integers(20, 40))
def test_every_token_lies_once_where_its_owner_and_place_say(lengths: list[int], width: int) -> None:
    sizes = np.array(lengths)
    ids = np.arange(100, 100 + sizes.sum())
    rows = pack_rows(ids, sizes, width)
    filled = rows.owners < len(sizes)
    assert filled.sum() == len(ids) and sorted(rows.ids[filled]) == ids.tolist()
    starts = 100 + np.cumsum(sizes) - sizes
    assert (rows.ids[filled] == starts[rows.owners[filled]] + rows.places[filled]).all()
    for row in rows.owners:  # a sequence lies in one piece
        changes = np.flatnonzero(np.diff(row)) + 1
        pieces = [part[0] for part in np.split(row, changes) if part[0] < len(sizes)]
        assert len(pieces) == len(set(pieces))
    assert len(rows.ids) <= 2 * sizes.sum() / width + 1, "two rows less than half full could have been one"
