"""The rules of the pages, alone: scales and their signs, what a curve says, which bars stand, where a key leads, which
runs the playground takes, and the command that trains the same."""

import shlex

import pytest

from qkv.cli import command_parser
from qkv.commands.arguments import settings
from qkv.recipe.request import Request, resolve


def test_values_below_0_have_a_scale_of_their_own_and_others_keep_theirs(run_node):
    signed, rising, wide = run_node(
        "rules.mjs",
        [{"ask": "suited", "values": values} for values in ([-0.8, 0, 0.4, 0.8], [0, 0.5, 1], [0, 0.001, 1])],
    )
    assert signed["diverging"] and signed["ends"] == [-0.8, 0.8]
    assert signed["positions"] == pytest.approx([0, 0.5, 0.75, 1])
    assert not rising["diverging"] and rising["ends"] == [0, 1]
    assert not wide["diverging"] and wide["ends"] == [0.001, 1]


def test_the_untrained_point_of_a_curve_is_step_0(run_node):
    values = {"dtype": "float32", "shape": [1, 2], "scale": 1, "data": "AACAPwAAAEA="}
    room = {"rows": [{"address": "W"}], "steps": [0, 4], "values": {"norm": values}}
    (points,) = run_node("rules.mjs", [{"ask": "seriesOf", "room": room}])
    assert [(p["step"], p["x"], p["value"]) for p in points] == [(0, 1, 1), (4, 4, 2)]


def test_the_largest_bars_stand_even_where_most_earned_exactly_nothing(run_node):
    nats = [-0.5, *[0.0] * 20, 0.2]
    rows = [{"address": f"W{i}", "role": "Q", "nats": value} for i, value in enumerate(nats)]
    (shown,) = run_node("rules.mjs", [{"ask": "largest", "rows": rows}])
    assert len(shown) == 16 and [row["nats"] for row in shown[:15]] == [-0.5, *[0.0] * 13, 0.2]
    assert shown[15]["address"] == "7 others" and sum(row["nats"] for row in shown) == pytest.approx(sum(nats))


def test_the_arrow_keys_pass_a_row_without_cells_and_stay_at_the_ends(run_node):
    placed = [{"row": 0, "x": 0}, {"row": 0, "x": 50}, {"row": 2, "x": 0}, {"row": 2, "x": 48}]
    asked = [(1, 1), (3, -1), (2, -1), (0, -1), (2, 1)]
    found = run_node("rules.mjs", [{"ask": "neighbour", "placed": placed, "at": at, "down": d} for at, d in asked])
    assert found == [3, 1, 0, 0, 2]


SIZES = {
    "d_vocab": 3,
    "d_model": 8,
    "n_layers": 2,
    "n_heads": 2,
    "n_ctx": 32,
    "n_kv_heads": 2,
    "d_head": 4,
    "d_mlp": 16,
}


def shapes(without=()):
    layer = dict.fromkeys(("W_Q", "W_K", "W_V", "W_O"), (8, 8)) | {"W_in": (8, 16), "W_out": (16, 8)}
    layer |= {"norm1.gain": (8,), "norm2.gain": (8,)}
    out = {"W_E": (3, 8), "W_pos": (32, 8), "norm_f.gain": (8,), "W_U": (8, 3)}
    out |= {f"L{i}.{name}": shape for i in range(2) for name, shape in layer.items()}
    return {address: shape for address, shape in out.items() if address not in without}


def test_keys_that_are_queries_are_taken_so_and_any_other_sharing_is_refused(run_node):
    both = ["L0.W_K=share(L0.W_Q)", "L1.W_K = share( L1.W_Q )"]
    crossed = ["L0.W_K=share(L0.W_Q)", "L1.W_K=share(L0.W_Q)"]

    def case(changes, without):
        settings = SIZES | {"positions": "learned", "scale": True, "skip": True, "changes": ", ".join(changes)}
        return {"ask": "loaded", "settings": settings, "tokens": list("abc"), "shapes": shapes(without)}

    keys = ["L0.W_K", "L1.W_K"]
    toml = 'changes = ["L0.W_K=share(L0.W_Q)", "L1.W_K=share(L1.W_Q)"]\n\n[model.sizes]\n'
    toml += "".join(f"{name} = {size}\n" for name, size in SIZES.items())
    toml += '\n[model.layout]\npositions = "learned"\nscale = true\nskip = true\n'
    asked = [case([], ()), case(["W_E=freeze"], ()), case(both, keys), case(both[:1], keys[:1]), case(crossed, keys)]
    asked.append({"ask": "loaded", "toml": toml, "tokens": list("abc"), "shapes": shapes(keys)})
    plain, frozen, shared, one, other, read = run_node("rules.mjs", asked)
    assert plain == frozen == {"positions": True, "scale": True, "skip": True, "shared": False}
    assert shared == read == plain | {"shared": True}
    assert "shares other matrices" in one and "shares other matrices" in other


def test_the_command_of_an_arm_trains_by_its_optimizer_at_its_rate(run_node, tmp_path):
    arms = [{}, {"optimizer": "sgd", "rate": 0.3}, {"rate": 0.0003, "shared": True}]
    commands = run_node("rules.mjs", [{"ask": "command", "arm": arm} for arm in arms])
    text = tmp_path / "my.txt"
    text.write_text("the cat sat on the mat and saw the dog. " * 100)
    found = []
    for command in commands:
        given = command_parser("train").parse_args(shlex.split(command)[2:])
        request = Request(
            source=str(text), preset=given.preset, tokenizer=given.tokenizer, steps=8, set=settings(given.set)
        )
        found.append(resolve(request, None)[0].training.optimizer)
    assert [(o.kind, o.lr) for o in found] == [("adamw", 0.003), ("sgd", 0.3), ("adamw", 0.0003)]
    assert found[1].momentum == 0
    assert "--change 'L0.W_K=share(L0.W_Q)' --change 'L1.W_K=share(L1.W_Q)'" in commands[2]
