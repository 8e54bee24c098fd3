"""Which cells a ladder has, by budget and text, before anything is trained."""

import pytest

from qkv.errors import ConfigError, SourceError
from qkv.studies.ladder.plan import SIZES, Cell, Shape, choose, left_out

SHAPE = Shape(arms=2, tuned=2, seeds=4, workers=2)


def cells(n_unique: int = 10**9, per_weight=(5.0, 20.0, 80.0), n_sizes: int = 4) -> list[Cell]:
    """Cells whose trainings take a second for each million of weights times tokens per weight, squared."""
    weights = [60_000, 170_000, 270_000, 920_000]
    return [
        Cell(
            size=SIZES[i], per_weight=n, n_weights=weights[i], steps=1, n_tokens=int(n * weights[i]), n_unique=n_unique,
            seconds=n * (weights[i] / 1e5) ** 2,
        )
        for n in per_weight
        for i in range(n_sizes)
    ]  # fmt: skip


def chosen(minutes: float, found: list[Cell]) -> list[str]:
    return [f"{c.size[0]}x{c.size[1]}@{c.per_weight:g}" for c in choose(found, SHAPE, minutes, "'a.txt'")]


def test_a_longer_budget_has_more_cells_and_no_length_has_fewer_than_three_sizes():
    found, before = cells(), 0
    least = SHAPE.minutes(found[:3])
    for minutes in (least / 0.9 + 0.1, 30, 100, 1000, 100_000):
        names = chosen(minutes, found)
        assert len(names) >= before
        before = len(names)
        for n in ("@5", "@20", "@80"):
            assert sum(name.endswith(n) for name in names) in (0, 3, 4)
        assert (
            SHAPE.minutes([c for c in found if f"{c.size[0]}x{c.size[1]}@{c.per_weight:g}" in names]) <= 0.9 * minutes
        )
    assert before == len(found)


def test_trainings_of_tuning_and_of_the_check_are_counted():
    line = cells(per_weight=(5.0,))
    counts = [SHAPE.trainings(cell, line) for cell in line]
    assert counts == [8 + 4 * 8, 8 + 4 * 4, 8, 8 + 3 * 2]


def test_a_budget_for_fewer_than_three_sizes_is_refused_with_the_minutes_that_would_do():
    found = cells()
    with pytest.raises(
        ConfigError, match=r"0.5 minutes are too few for a ladder: it needs 3 sizes, and 32x2, 64x2"
    ) as e:
        chosen(0.5, found)
    assert len(chosen(int(str(e.value).rpartition("--minutes ")[2]), found)) == 3


def test_a_text_too_small_for_the_slices_of_three_sizes_is_refused():
    with pytest.raises(
        SourceError, match=r"'a.txt' is too small for a ladder: a training of 64x4 at 5 tokens per weight"
    ):
        chosen(1e6, cells(n_unique=50_000))


def test_cells_that_would_read_a_slice_too_often_are_left_out_and_named():
    found = cells(n_unique=400_000)
    plan = choose(found, SHAPE, 1e6, "'a.txt'")
    assert max(cell.epochs for cell in plan) <= 16 and {cell.per_weight for cell in plan} == {5.0, 20.0}
    assert "128x4 at 20 tokens per weight" in left_out(found, plan) and "16 passes" in left_out(found, plan)


def test_a_cell_survives_its_json():
    assert [Cell.from_json(vars(cell)) for cell in cells()] == cells()
