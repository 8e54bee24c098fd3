"""The rules of the pages, alone: scales and their signs, what a curve says, which bars stand, where a key leads, which
runs the playground takes, and the command that trains the same."""

import pytest


def test_values_below_0_have_a_scale_of_their_own_and_others_keep_theirs(run_node):
    signed, rising, wide = run_node(
        "rules.mjs",
        [{"ask": "suited", "values": values} for values in ([-0.8, 0, 0.4, 0.8], [0, 0.5, 1], [0, 0.001, 1])],
    )
    assert signed["diverging"] and signed["ends"] == [-0.8, 0.8]
    assert signed["positions"] == pytest.approx([0, 0.5, 0.75, 1])
    assert not rising["diverging"] and rising["ends"] == [0, 1]
    assert not wide["diverging"] and wide["ends"] == [0.001, 1]
