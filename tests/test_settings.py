"""Settings that are given by name."""

import itertools
from dataclasses import dataclass, field

import pytest

from qkv.config import override
from qkv.errors import ConfigError
from qkv.models.layout import Patches


@dataclass(frozen=True, kw_only=True)
class Inner:
    width: int = 2
    depth: int = 1


@dataclass(frozen=True, kw_only=True)
class Outer:
    patches: Patches = field(default_factory=lambda: Patches(height=9, width=6, patch=3, stride=3))
    inner: Inner | None = None
    name: str = ""


def test_settings_that_fit_only_together_may_come_in_any_order():
    wanted = {"stride": "4", "patches.patch": 5, "name": "a"}
    found = [override(Outer(), dict(order)) for order in itertools.permutations(wanted.items())]
    assert all(one == found[0] for one in found)
    assert (found[0].patches.stride, found[0].patches.patch, found[0].name) == (4, 5, "a")
    with pytest.raises(ConfigError, match="stride 4 is larger than patch 3"):
        override(Outer(), {"stride": 4})


def test_what_is_not_there_cannot_be_set_and_values_that_are_no_numbers_say_where():
    assert override(Outer(inner=Inner()), {"inner.depth": 3, "inner.width": "4"}).inner == Inner(width=4, depth=3)
    with pytest.raises(ConfigError, match=r"inner\.depth has no effect here: this run has no inner"):
        override(Outer(), {"depth": 3})
    with pytest.raises(ConfigError, match=r"patches\.patch"):
        override(Outer(), {"patch": "five"})
    with pytest.raises(ConfigError, match=r"patches\.width or inner\.width"):
        override(Outer(), {"width": 3})
