"""What would show an answer to be wrong, and what came out otherwise than expected."""

import pytest

from qkv.studies.engine.design import Contrast
from qkv.studies.verdict.judging import judged, numbered
from qkv.studies.verdict.sentences import otherwise, refuted_by


@pytest.mark.parametrize(
    ("expected", "values", "refuted"),
    [
        ("above 0", (0.2, 0.21, 0.19, 0.2, 0.22, 0.18), False),
        ("above 0, and small", (-0.2, -0.21, -0.19, -0.2, -0.22, -0.18), True),
        ("far above 0", (0.001, -0.001, 0.002, 0.0, 0.001, -0.002), True),
        ("above 0", (0.9, -0.8, 0.7, -0.9, 0.8, -0.7), False),  # open
        ("below 0", (0.2, 0.21, 0.19, 0.2, 0.22, 0.18), True),
        ("near 0", (0.2, 0.21, 0.19, 0.2, 0.22, 0.18), True),
        ("near 0", (0.001, -0.001, 0.002, 0.0, 0.001, -0.002), False),
        ("0 by construction", (0.01, 0.011, 0.009, 0.01, 0.012, 0.008), False),  # trivially
        ("low, says a tutorial", (0.2, 0.21, 0.19, 0.2, 0.22, 0.18), False),  # no side that could be wrong
        ("", (-0.2, -0.21, -0.19, -0.2, -0.22, -0.18), False),
    ],
)
def test_what_came_out_otherwise_is_what_the_run_settles_against_its_expectation(expected, values, refuted):
    contrast = Contrast(name="a - b", what="", terms=(), margin=0.05, expected=expected)
    (effect,) = judged([(contrast, numbered(values))])
    told = otherwise([effect])
    assert bool(told) == refuted and all(line.endswith(f"(expected: {expected})") for line in told)
    sides = {"differs": "to 0 or beyond it", "equivalent": "beyond 0.050", "differs but trivially": "to 0, or beyond"}
    says = refuted_by(effect)
    assert (says == "") == (effect.result.verdict == "unresolved")
    assert not says or sides[effect.result.verdict] in says
