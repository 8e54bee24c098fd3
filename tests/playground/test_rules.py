"""The rules of the pages, alone: scales and their signs, what a curve says, which bars stand, where a key leads, which
runs the playground takes, and the command that trains the same."""

import json
import shlex

import pytest
import torch

from qkv.cli import command_parser
from qkv.commands.arguments import settings
from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.models.matrices import Catalogue
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
        config = resolve(request, None)[0]
        found.append(config.training.optimizer)
        assert (config.model.sizes.n_ctx, config.model.sizes.d_model, config.training.batch_size) == (32, 32, 32)
        schedule = config.training.schedule
        assert (schedule.warmup_steps, schedule.decay_share, found[-1].clip, found[-1].weight_decay) == (0, 0, 0, 0)
    assert [(o.kind, o.lr) for o in found] == [("adamw", 0.003), ("sgd", 0.3), ("adamw", 0.0003)]
    assert found[1].momentum == 0 and (found[0].beta1, found[0].beta2, found[0].eps) == (0.9, 0.999, 1e-8)
    assert "--change 'L0.W_K=share(L0.W_Q)' --change 'L1.W_K=share(L1.W_Q)'" in commands[2]


def test_an_arm_shows_no_gradient_before_its_first_step_and_writes_nothing_without_probabilities(run_node):
    (got,) = run_node("rules.mjs", [{"ask": "watched", "layers": 1, "steps": 1}])
    assert got["none"] and got["written"] == []


def test_what_moved_q_splits_its_change_in_every_layer(run_node):
    """By what enters each layer's W_Q in our model, in float64, with the weights of the start and of now."""
    (got,) = run_node("rules.mjs", [{"ask": "watched", "layers": 2, "steps": 3}])
    layout = Layout(positions="learned", norm="layer", norm_eps=1e-5, mlp="gelu", tied=False, start="gpt2")
    model = build(ModelConfig(kind="CausalLM", sizes=Sizes(**got["sizes"]), layout=layout), 0).double()
    x, weights = [], []
    for when in ("first", "now"):
        state = Catalogue(model).state()
        Catalogue(model).load_state(
            {a: torch.tensor(v, dtype=torch.float64).view(state[a].shape) for a, v in got[when].items()}
        )
        with torch.no_grad():
            _, record = model.forward_recorded(torch.tensor([got["sentence"]]))
        x.append([record[f"L{i}.x"][0] for i in range(2)])
        weights.append([torch.tensor(got[when][f"L{i}.W_Q"], dtype=torch.float64).view(32, 32) for i in range(2)])
    for i, moved in enumerate(got["moved"]):
        dx, dw = x[1][i] - x[0][i], weights[1][i] - weights[0][i]
        parts = {"encodings": dx @ weights[0][i], "matrix": x[0][i] @ dw, "both": dx @ dw}
        parts["all"] = x[1][i] @ weights[1][i] - x[0][i] @ weights[0][i]
        first = (x[0][i] @ weights[0][i]).norm()
        assert moved == pytest.approx({name: float(part.norm() / first) for name, part in parts.items()}, rel=1e-8)


def test_characters_are_counted_as_a_reader_counts_and_those_that_a_run_knows_apart(run_node):
    cases = [("😀b😀", None), ("a😀b", ["a", "b"]), ("a😀b", ["[UNK]", "a"]), ("ab", ["a", "\ufffd"])]
    found = run_node("rules.mjs", [{"ask": "characters", "text": text, "tokens": tokens} for text, tokens in cases])
    assert found == [[3, 3], [2, 2], [3, 1], [2, 1]]


def test_a_damaged_file_is_told_in_a_sentence(run_node):
    row = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    headers = ["[", "null", '{"a": null}', '{"a": {"dtype": "F32"}}', json.dumps({"a": row | {"shape": 3}})]
    asked = [{"ask": "refused", "header": header} for header in headers]
    asked.append({"ask": "refused", "header": json.dumps({"a": row | {"data_offsets": [-200, -184]}})})
    asked.append({"ask": "refused", "tokenizer": "{"})
    *plain, before, tokenizer = run_node("rules.mjs", asked)
    assert plain == ["This is no safetensors file."] * len(headers)
    assert before == "a is cut short: the file is damaged."
    assert tokenizer == "tokenizer.json is no JSON: the file is damaged."
