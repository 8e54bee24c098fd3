"""When matrices are looked at: dense at first, never rare, and a pure function of the step."""

from qkv.instruments.schedule import interval, is_by_head, is_by_row, is_recorded, is_spectral


def test_a_short_run_gets_sixty_looks_and_a_long_one_not_many_more():
    looks = {n: sum(map(is_recorded, range(n + 1))) for n in (300, 1_000, 5_000, 100_000)}
    assert looks == {300: 62, 1_000: 150, 5_000: 295, 100_000: 570}  # the figures of the module's head


def test_the_first_steps_and_every_power_of_two_are_looked_at_by_all():
    assert all(map(is_recorded, range(17)))
    for power in (1 << i for i in range(20)):
        assert all(rule(power) for rule in (is_recorded, is_by_head, is_spectral, is_by_row))
    assert all(rule(0) for rule in (is_recorded, is_by_head, is_spectral, is_by_row))


def test_a_dearer_look_is_only_taken_with_a_cheaper_one():
    for step in range(5000):
        assert is_recorded(step) or not is_by_head(step)
        assert is_by_head(step) or not is_spectral(step)
        assert is_recorded(step) or not is_by_row(step)


def test_looks_come_at_least_every_eight_updates_up_to_a_thousand():
    steps = [step for step in range(1025) if is_recorded(step)]
    assert max(b - a for a, b in zip(steps, steps[1:], strict=False)) == 8
    assert interval(1 << 20) == 1 << 14
