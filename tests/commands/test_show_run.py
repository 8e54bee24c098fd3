"""`qkv show RUN`: the colour of a cell is its value against the largest of them, of either sign."""

from types import SimpleNamespace

import numpy as np

from qkv.commands.show.overview import RunShown


def test_values_below_0_are_shaded_by_their_size(capsys):
    last = {"L0.W_Q": -0.8, "L0.W_K": -0.1, "L0.W_V": 0.3}
    rows = [SimpleNamespace(about=SimpleNamespace(address=a, head=None, layer=0, kind=a[3:])) for a in last]
    curves = {address: np.array([value]) for address, value in last.items()}
    RunShown(None, [], "onward", np.array([4]), curves, {}, rows)._print_layers()
    assert capsys.readouterr().out.splitlines()[1].split() == ["L0", "-0.8000", "█", "-0.1000", "░", "0.3000", "▒"]
