"""Sequences side by side: nothing lost, nothing twice, no two rows that could have been one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.sequences import pack_rows


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
