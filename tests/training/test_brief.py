"""Laws of less than two minutes."""

import pytest

from qkv.laws import Budget, bytes_worth_reading, pair_law, size_validated_in_time


def test_a_part_of_a_long_text_is_worth_reading_in_less_than_two_minutes() -> None:
    assert [bytes_worth_reading(m) for m in (0.0, 0.1, 1 / 6, 0.5, 1.5, 2.0, 60.0)] == [
        0, 2_100_000, 2_100_000, 4_000_000, 12_000_000, 0, 0,
    ]  # fmt: skip


def test_where_more_is_trained_on_more_is_worth_reading_as_far_as_it_can_be_read() -> None:
    assert [bytes_worth_reading(0.5, times) for times in (1.0, 2.0, 100.0)] == [4_000_000, 8_000_000, 10_000_000]
    assert bytes_worth_reading(2.0, 100.0) == 0


@pytest.mark.parametrize(
    ("minutes", "val_tokens", "d_vocab", "size"),
    [
        (1 / 6, 76_116, 1_984, (128, 2)),
        (1 / 6, 640_000, 2_048, (64, 1)),
        (0.5, 590_000, 2_816, (64, 2)),
        (1.5, 540_000, 3_968, (128, 4)),
        (2.0, 10**9, 3_968, (192, 4)),  # from here on the size is that of the passes alone
    ],
)
def test_the_size_is_the_largest_whose_validation_leaves_time_to_train(minutes, val_tokens, d_vocab, size) -> None:
    given = (192, 4) if minutes > 1 else (128, 4)
    assert size_validated_in_time(*given, minutes, val_tokens, d_vocab) == size
    assert size_validated_in_time(64, 2, minutes, 0, d_vocab) == (64, 2)


def test_a_size_that_is_below_the_smallest_stays() -> None:
    assert size_validated_in_time(32, 1, 0.1, 10**9, 2_000) == (32, 1)


@pytest.mark.parametrize(
    ("minutes", "n_pairs", "size"),
    [
        (1.0, 29_000, (64, 2)),
        (1.99, 500, (64, 2)),
        (2.0, 29_000, (128, 2)),
        (4.0, 29_000, (256, 3)),
        (0.0, 29_000, (256, 3)),
        (30.0, 500, (128, 2)),
    ],
)
def test_pairs_are_learned_by_a_model_that_the_time_is_enough_for(minutes, n_pairs, size) -> None:
    scale = pair_law(n_pairs, Budget(minutes=minutes), 0.0)
    assert (scale.d_model, scale.n_layers) == size
