"""`qkv learn check`: a right file passes, each typical mistake gets its own sentence, and so does what does not run."""

import json
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from qkv import cli
from qkv.errors import UserError
from qkv.lessons import mistakes, student
from qkv.lessons.check import CASES, SAYS, _sentence, check, expected

SOLUTION = """
import numpy as np

def split(t, h):
    b, n, width = t.shape
    t = t.reshape(b, n, h, width // h)
    return t.transpose(0, 2, 1, 3)

def merge(t):
    b, h, n, e = t.shape
    t = t.transpose(0, 2, 1, 3)
    return t.reshape(b, n, h * e)

def softmax(s, axis=-1):
    s = s - s.max(axis, keepdims=True)
    p = np.exp(s)
    return p / p.sum(axis, keepdims=True)

def pattern_of(x, q, k, causal):
    s = q @ k.transpose(0, 1, 3, 2)
    s = s / np.sqrt(q.shape[-1])
    if causal:
        s = np.where(np.tri(x.shape[1]) > 0, s, -np.inf)
    a = softmax(s)
    return a

def attention(x, W_Q, W_K, W_V, W_O, n_heads, causal):
    q = split(x @ W_Q, n_heads)
    k = split(x @ W_K, n_heads)
    v = split(x @ W_V, n_heads)
    a = pattern_of(x, q, k, causal)
    z = a @ v
    out = merge(z) @ W_O
    return out

def attention_backward(out_bar, x, W_Q, W_K, W_V, W_O, n_heads, causal):
    q, k, v = (split(x @ W, n_heads) for W in (W_Q, W_K, W_V))
    a = pattern_of(x, q, k, causal)
    z = a @ v
    z_bar = split(out_bar @ W_O.T, n_heads)
    v_bar = a.transpose(0, 1, 3, 2) @ z_bar
    a_bar = z_bar @ v.transpose(0, 1, 3, 2)
    s_bar = a * (a_bar - (a_bar * a).sum(-1, keepdims=True))
    s_bar = s_bar / np.sqrt(q.shape[-1])
    q_bar = merge(s_bar @ k)
    k_bar = merge(s_bar.transpose(0, 1, 3, 2) @ q)
    v_bar = merge(v_bar)
    x_bar = q_bar @ W_Q.T + k_bar @ W_K.T + v_bar @ W_V.T
    outer = lambda a, b: np.einsum("bnd,bnm->dm", a, b)
    return x_bar, outer(x, q_bar), outer(x, k_bar), outer(x, v_bar), outer(merge(z), out_bar)
"""
SCALE = "    s = s / np.sqrt(q.shape[-1])\n"
MASK = "        s = np.where(np.tri(x.shape[1]) > 0, s, -np.inf)\n"
OUT = "    out = merge(z) @ W_O\n"
Z = "    z = a @ v\n    out"
FORWARD = {
    "no-scale": (SCALE, ""),
    "scale-d-model": (SCALE, "    s = s / np.sqrt(x.shape[-1])\n"),
    "scale-no-root": (SCALE, "    s = s / q.shape[-1]\n"),
    "scale-multiplied": (SCALE, "    s = s * np.sqrt(q.shape[-1])\n"),
    "no-mask": (MASK, "        pass\n"),
    "mask-always": ("    if causal:\n", "    if True:\n"),
    "mask-after-softmax": (
        MASK + "    a = softmax(s)\n",
        "        pass\n    a = softmax(s)\n    a = a * (np.tri(x.shape[1]) if causal else 1)\n",
    ),
    "mask-zero": (MASK, "        s = s * np.tri(x.shape[1])\n"),
    "mask-diagonal": (MASK, "        s = s - 1e9 * (1 - np.tri(x.shape[1], k=-1))\n"),
    "mask-next": (MASK, "        s = np.where(np.tri(x.shape[1], k=1) > 0, s, -np.inf)\n"),
    "mask-transposed": (MASK, "        s = np.where(np.tri(x.shape[1]).T > 0, s, -np.inf)\n"),
    "softmax-queries": ("a = softmax(s)", "a = softmax(s, axis=-2)"),
    "softmax-heads": (
        MASK + "    a = softmax(s)",
        "        s = s - 1e9 * (1 - np.tri(x.shape[1]))\n    a = softmax(s, axis=1)",
    ),
    "softmax-all": ("a = softmax(s)", "a = softmax(s, axis=(-2, -1))"),
    "no-softmax": (MASK + "    a = softmax(s)", "        s = s * np.tri(x.shape[1])\n    a = s"),
    "no-sum": ("a = softmax(s)", "a = np.exp(s)"),
    "scores-transposed": ("s = q @ k.transpose(0, 1, 3, 2)", "s = k @ q.transpose(0, 1, 3, 2)"),
    "pattern-transposed": (Z, "    z = a.transpose(0, 1, 3, 2) @ v\n    out"),
    "queries-as-keys": ("k = split(x @ W_K, n_heads)", "k = q"),
    "keys-as-values": ("v = split(x @ W_V, n_heads)", "v = k"),
    "values-not-projected": ("v = split(x @ W_V, n_heads)", "v = split(x, n_heads)"),
    "no-output-matrix": (OUT, "    out = merge(z)\n"),
    "output-transposed": (OUT, "    out = merge(z) @ W_O.T\n"),
    "interleaved": (
        "    t = t.reshape(b, n, h, width // h)\n    return t.transpose(0, 2, 1, 3)",
        "    return t.reshape(b, n, width // h, h).transpose(0, 3, 1, 2)",
    ),
    "split-without-transpose": (
        "    t = t.reshape(b, n, h, width // h)\n    return t.transpose(0, 2, 1, 3)",
        "    return t.reshape(b, h, n, width // h)",
    ),
    "merge-without-transpose": ("    t = t.transpose(0, 2, 1, 3)\n", ""),
    "one-head": ("    v = split(x @ W_V, n_heads)\n", "    q, k, v = (split(x @ W, 1) for W in (W_Q, W_K, W_V))\n"),
    "heads-summed": (OUT, "    out = z.sum(1) @ W_O.reshape(n_heads, -1, W_O.shape[1]).sum(0)\n"),
    "heads-averaged": (OUT, "    out = merge(z) @ W_O / n_heads\n"),
    "skip-added": (OUT, "    out = x + merge(z) @ W_O\n"),
}
JACOBIAN, S_BAR = (
    "    s_bar = a * (a_bar - (a_bar * a).sum(-1, keepdims=True))\n",
    "    s_bar = s_bar / np.sqrt(q.shape[-1])\n",
)
A_AGAIN = "    a = pattern_of(x, q, k, causal)\n    z = a @ v\n    z_bar"
OUTER = 'np.einsum("bnd,bnm->dm", a, b)'
BACKWARD = {
    "no-jacobian": (JACOBIAN, "    s_bar = a_bar\n"),
    "jacobian-sum": (JACOBIAN, "    s_bar = a * a_bar\n"),
    "jacobian-queries": (JACOBIAN, JACOBIAN.replace("sum(-1", "sum(-2")),
    "backward-no-scale": (S_BAR, ""),
    "backward-no-mask": (
        A_AGAIN,
        A_AGAIN.replace("causal)\n", "causal)\n    a_of_z, a = a, pattern_of(x, q, k, False)\n").replace(
            "z = a @", "z = a_of_z @"
        ),
    ),
    "skips-output-matrix": ("z_bar = split(out_bar @ W_O.T, n_heads)", "z_bar = split(out_bar, n_heads)"),
    "pattern-not-transposed": ("v_bar = a.transpose(0, 1, 3, 2) @ z_bar", "v_bar = a @ z_bar"),
    "scores-not-transposed": ("merge(s_bar.transpose(0, 1, 3, 2) @ q)", "merge(s_bar @ q)"),
    "key-gradient-from-q": ("outer(x, k_bar)", "outer(x, q_bar)"),
    "gradients-swapped": ("outer(x, q_bar), outer(x, k_bar)", "outer(x, k_bar), outer(x, q_bar)"),
    "gradients-averaged": (OUTER, OUTER + " / len(a)"),
    "gradients-transposed": (OUTER, OUTER.replace("dm", "md")),
    "backward-skip-added": ("    x_bar = q_bar", "    x_bar = out_bar + q_bar"),
    "only-through q": (" + k_bar @ W_K.T + v_bar @ W_V.T", ""),
    "only-through v": ("q_bar @ W_Q.T + k_bar @ W_K.T + ", ""),
    "only-through q k": (" + v_bar @ W_V.T", ""),
}


@pytest.fixture
def in_process(monkeypatch):
    """The student's file runs in this process, which is faster; what runs and what is written stays the same."""

    class Child:
        def __init__(self, command, **options):
            student.main(Path(command[-2]), Path(command[-1]))

        def wait(self, seconds=0.0): ...
        def kill(self): ...
        def poll(self):
            return 0

    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("qkv.lessons.check.subprocess.Popen", Child)


def written(tmp_path, source, name="mine.py"):
    (tmp_path / name).write_text(source, encoding="utf-8")
    return tmp_path / name


def with_change(change):
    old, new = change
    assert SOLUTION.count(old) == 1, old
    return SOLUTION.replace(old, new)


def test_attention_without_a_mistake_is_torch_s():
    for one in CASES:
        ours = (mistakes.attention(one), *mistakes.attention_backward(one))
        for found, right in zip(ours, expected(one), strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-9, atol=1e-9)


def test_every_mistake_is_tried_and_changes_something():
    paths = {f"only-through {path}" for path in mistakes.PATHS}
    assert set(FORWARD) == set(SAYS["attention"])
    assert {key.partition(" ")[0] for key in BACKWARD} == set(SAYS["attention_backward"])
    for key in (*SAYS["attention"], *(set(SAYS["attention_backward"]) - {"only-through"} | paths)):
        made = [
            np.concatenate(
                [np.ravel(t) for t in (mistakes.attention(c, {key}), *mistakes.attention_backward(c, {key}))]
            )
            for c in CASES[:-1]
        ]
        right = [np.concatenate([np.ravel(t) for t in expected(c)]) for c in CASES[:-1]]
        assert any((np.abs(a - b) > 1e-3).any() for a, b in zip(made, right, strict=True)), key
    sentences = [s for part in SAYS.values() for s in part.values()]
    assert len(set(sentences)) == len(sentences) > 40


def test_a_right_file_passes(tmp_path, capsys):
    findings, lines = check(written(tmp_path, SOLUTION))
    assert [(one.function, one.state, one.mistakes) for one in findings] == [
        ("attention", "right", ()),
        ("attention_backward", "right", ()),
    ]
    assert lines == 0
    assert cli.main(["learn", "check", str(tmp_path / "mine.py")]) == 0
    said = capsys.readouterr()
    assert said.out.count(" is right: ") == 2 and said.err == ""


@pytest.mark.parametrize("key", FORWARD)
def test_a_wrong_attention_gets_its_own_sentence(key, tmp_path, in_process):
    findings, _ = check(written(tmp_path, with_change(FORWARD[key])))
    assert (findings[0].state, findings[0].mistakes) == ("wrong", (key,)), findings[0].sentence
    assert findings[0].sentence == SAYS["attention"][key]


@pytest.mark.parametrize("key", BACKWARD)
def test_a_wrong_backward_pass_gets_its_own_sentence(key, tmp_path, in_process):
    forward, backward = check(written(tmp_path, with_change(BACKWARD[key])))[0]
    assert forward.state == "right"
    assert (backward.state, backward.mistakes) == ("wrong", (key.partition(" ")[0],)), backward.sentence
    assert backward.sentence == _sentence("attention_backward", key)


MERGE = "    t = t.transpose(0, 2, 1, 3)\n    return t.reshape(b, n, h * e)"
SPELLED = {
    "interleaved": [FORWARD["interleaved"], (MERGE, "    return t.transpose(0, 2, 3, 1).reshape(b, n, h * e)")],
    "split-without-transpose": [FORWARD["split-without-transpose"], (MERGE, "    return t.reshape(b, n, h * e)")],
    "softmax-heads": [
        (MASK, "        s = np.where(np.tri(x.shape[1]) > 0, s, -1e9)\n"),
        ("a = softmax(s)", "a = softmax(s, axis=1)"),
    ],
    "mask-diagonal": [(MASK, "        s = np.where(np.tri(x.shape[1], k=-1) > 0, s, -np.inf)\n")],
}
"""The same mistakes, made another way."""


def changed(changes):
    source = SOLUTION
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


@pytest.mark.parametrize("key", SPELLED)
def test_a_mistake_is_known_in_its_other_spellings(key, tmp_path, in_process):
    assert check(written(tmp_path, changed(SPELLED[key])))[0][0].mistakes == (key,)


def test_two_mistakes_are_both_named(tmp_path, in_process):
    found = check(written(tmp_path, changed([FORWARD["no-scale"], FORWARD["no-output-matrix"]])))[0][0]
    assert found.mistakes == ("no-scale", "no-output-matrix")
    assert found.sentence == f"There are two mistakes. {FORWARD_SAYS['no-scale']} {FORWARD_SAYS['no-output-matrix']}"


FORWARD_SAYS = SAYS["attention"]
OTHERS = {
    "overflow": (("    s = s - s.max(axis, keepdims=True)\n", ""), "overflows for large ones"),
    "large": ((MASK, MASK.replace("-np.inf", "-200.0")), "wrong for large ones (up to "),
    "changed": (
        ("    q = split(x @ W_Q, n_heads)\n", "    q = split(x @ W_Q, n_heads)\n    W_Q *= 2\n"),
        "argument W_Q in place",
    ),
    "shape": (
        (OUT, OUT + "    out = out[0]\n"),
        "returns out of shape (5, 4); expected (1, 5, 4) for x of shape (1, 5, 4), n_heads=1",
    ),
    "unknown": (
        (OUT, OUT + "    out[0, 0, 1] += 0.25 * causal\n"),
        "in 4 of 7 cases. The largest difference is 0.25, at out[0, 0, 1]",
    ),
}


@pytest.mark.parametrize("key", OTHERS)
def test_other_faults_are_told_with_their_place(key, tmp_path, in_process):
    change, said = OTHERS[key]
    found = check(written(tmp_path, with_change(change)))[0][0]
    assert (found.state, found.mistakes) == ("wrong", (key,)), found.sentence
    assert said in found.sentence


def test_an_unknown_difference_names_the_gradients(tmp_path, in_process):
    change = ("outer(x, v_bar), outer", "3 * outer(x, v_bar), outer")
    found = check(written(tmp_path, with_change(change)))[0][1]
    assert found.mistakes == ("unknown",) and "in 7 of 7 cases (W_V_bar)" in found.sentence


def test_a_backward_pass_that_shares_the_mistake_waits(tmp_path, in_process):
    findings, _ = check(written(tmp_path, with_change(FORWARD["no-scale"])))
    assert [one.mistakes for one in findings] == [("no-scale",), ()]
    assert findings[1].sentence.endswith("Correct attention first.")


NOT_JUDGED = {
    "a crash": (SOLUTION + "\n1 / 0\n", r"does not run: ZeroDivisionError in line \d+: division by zero$"),
    "no Python": ("def attention(:", r"does not run: SyntaxError in line 1: "),
    "an exit": ("import sys\nsys.exit(3)\n", r"does not run: SystemExit in line 2: 3$"),
    "a sudden end": ("import os\nos._exit(0)\n", r"ended the Python process \(status 0\)"),
    "a question": ("input('size?')\n", r"does not run: EOFError in line 1"),
    "a loop": ("while True: pass\n", r"was stopped after 2 s; look for a loop"),
    "a loop inside": (
        SOLUTION.replace("    return out\n", "    while True: pass\n"),
        r"attention in .*mine.py was stopped after 6 s",
    ),
    "a lack": (
        SOLUTION.replace("def attention_backward", "def backward"),
        r"has no function attention_backward; qkv learn check",
    ),
    "nothing written": (
        SOLUTION.replace("    return out\n", "    raise NotImplementedError\n"),
        r"^attention is not written yet$",
    ),
    "an error": (
        SOLUTION.replace("    return out\n", "    return undefined\n"),
        r"attention raises NameError in line \d+ for x of shape \(1, 5, 4\), n_heads=1, causal=False",
    ),
    "None": (
        SOLUTION.replace("    return out\n", ""),
        r"attention raises TypeError for .*: attention returned NoneType; expected an array of numbers",
    ),
}


SECONDS = {"a loop": "2", "a loop inside": "6"}
"""Python and NumPy start within the second, also on a busy machine."""


@pytest.mark.parametrize("what", NOT_JUDGED)
def test_a_file_that_cannot_be_judged_gets_one_sentence_and_status_2(what, tmp_path, capsys):
    source, said = NOT_JUDGED[what]
    path = written(tmp_path, source)
    began = time.monotonic()
    assert cli.main(["learn", "check", str(path), "--seconds", SECONDS.get(what, "20")]) == 2
    assert time.monotonic() - began < 20
    (sentence,) = capsys.readouterr().err.removesuffix("\n").split("\n")
    assert re.search(said, sentence.removeprefix("qkv: ")), sentence


def test_a_child_of_a_stopped_file_is_stopped_too(tmp_path):
    source = "import os, time\nif os.fork() == 0:\n    open('child', 'w').write(str(os.getpid()))\ntime.sleep(60)\n"
    with pytest.raises(UserError, match="was stopped after 3 s"):
        check(written(tmp_path, source.replace("'child'", repr(str(tmp_path / "child")))), 3.0)
    time.sleep(0.2)
    pid = int((tmp_path / "child").read_text())
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_a_wrong_answer_is_status_1_and_what_it_prints_is_counted(tmp_path, capsys):
    path = written(tmp_path, with_change(FORWARD["no-mask"]) + "\nprint('hello')\nprint('again')\n")
    assert cli.main(["learn", "check", str(path)]) == 1
    said = capsys.readouterr()
    assert FORWARD_SAYS["no-mask"] in said.out and f"{path} printed 2 lines, not shown here." in said.out
    assert "hello" not in said.out + said.err and said.err == ""
    assert cli.main(["learn", "check", str(path), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["right"] is False and told["functions"][0]["mistakes"] == ["no-mask"]


def test_a_template_is_written_once_and_runs(tmp_path, capsys):
    path = str(tmp_path / "mine.py")
    assert cli.main(["learn", "check", path]) == 2
    assert f"qkv learn check {path} --template" in capsys.readouterr().err
    assert cli.main(["learn", "check", "--template", path]) == 0
    assert f"type: qkv learn check {path}" in Path(path).read_text()
    assert cli.main(["learn", "check", "--template", path]) == 2
    assert "is not overwritten" in capsys.readouterr().err
    assert cli.main(["learn", "check", path]) == 2
    assert capsys.readouterr().err == "qkv: attention is not written yet\n"
    assert cli.main(["learn", "check"]) == 2


def test_the_code_of_a_notebook_is_checked(tmp_path):
    cells = [
        {"cell_type": "markdown", "source": ["# Mine"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "!ls\n"]},
    ]
    cells += [{"cell_type": "code", "source": SOLUTION}]
    findings, _ = check(written(tmp_path, json.dumps({"cells": cells, "nbformat": 4}), "mine.ipynb"))
    assert [one.state for one in findings] == ["right", "right"]
    with pytest.raises(UserError, match="it is no notebook"):
        check(written(tmp_path, "[1]", "other.ipynb"))


LAST = "    return x_bar, outer(x, q_bar), outer(x, k_bar), outer(x, v_bar), outer(merge(z), out_bar)\n"


@pytest.mark.parametrize(("given", "n"), [("()", "0 arrays"), ("(x_bar,)", "1 array"), ("(*[x_bar] * 6,)", "6 arrays")])
def test_another_number_of_gradients_is_told(given, n, tmp_path, in_process):
    found = check(written(tmp_path, with_change((LAST, f"    return {given}\n"))))[0][1]
    assert found.mistakes == ("count",) and f"returns {n}; expected five arrays" in found.sentence


def test_a_gradient_that_is_none_is_named(tmp_path, in_process):
    found = check(written(tmp_path, with_change((LAST, "    return x_bar, None, x_bar, x_bar, x_bar\n"))))[0][1]
    assert found.state == "broken" and "returned NoneType" in found.sentence


def test_a_function_that_fails_in_some_cases_is_told_with_the_case(tmp_path, in_process):
    change = ("    return out\n", "    assert n_heads < 3, 'too many heads'\n    return out\n")
    found = check(written(tmp_path, with_change(change)))[0][0]
    assert found.state == "broken" and "AssertionError in line" in found.sentence
    assert "for x of shape (2, 5, 6), n_heads=3, causal=True: too many heads" in found.sentence


def test_an_exported_notebook_with_plots_and_dataclasses_runs(tmp_path):
    before = "from __future__ import annotations\nfrom dataclasses import dataclass\nimport os\n"
    before += "get_ipython().run_line_magic('matplotlib', 'inline')\n@dataclass\nclass Sizes:\n    n: int\n"
    before += "assert os.environ['MPLBACKEND'] == 'Agg'\n"
    assert [one.state for one in check(written(tmp_path, before + SOLUTION))[0]] == ["right", "right"]
