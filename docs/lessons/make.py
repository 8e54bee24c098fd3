"""Write one notebook per lesson, with its outputs: python docs/lessons/make.py [--check]

The questions and answers are those of `qkv learn`; the code of each step is below. Each cell is executed here, and what
it prints or draws is stored in the notebook. With --check nothing is written; exit status 1 if a notebook is stale.
"""

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

from qkv.lessons import LESSONS
from qkv.lessons.course import lesson

HERE = Path(__file__).parent
PICTURE = """class Picture:  # matrices side by side: blue is negative, orange positive, each on its own scale
    def __init__(self, matrices):
        self.matrices = matrices

    def __repr__(self):
        return "Picture: " + ", ".join(self.matrices)

    def _repr_svg_(self):
        parts, left = [], 0
        for title, matrix in self.matrices.items():
            parts.append(f'<text x="{left}" y="13">{title}</text>')
            for (i, j), value in np.ndenumerate(matrix / np.abs(matrix).max()):
                if abs(value) > 0.01:
                    place = f'x="{left + 12 * j}" y="{12 * i + 20}" width="12" height="12"'
                    color = "#c2591c" if value > 0 else "#175290"
                    parts.append(f'<rect {place} fill="{color}" fill-opacity="{abs(value):.2f}"/>')
            left += max(12 * matrix.shape[1], 8 * len(title)) + 24
        height = 20 + 12 * max(len(matrix) for matrix in self.matrices.values())
        size = f'width="{left}" height="{height}" font-family="sans-serif" font-size="12"'
        return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(parts)}</svg>'"""
SETUP = """import numpy as np

from qkv.lessons.facts import SENTENCE, models

first, last, sizes, texts = models()  # the model at initialization and after its training
words = SENTENCE.split()
before, after = first.forward(SENTENCE), last.forward(SENTENCE)
head = int(after["pattern"][:, words.index("and"), 1].argmax())  # it looks most from "and" at the subject
print(SENTENCE, "| head", head)"""
CODE = {
    "trained": (
        """i, queen = words.index("queen"), first.tokens.index("queen")
W_Q, W_Q_last = (model.attention[0][head] for model in (first, last))
for name, a, b in [("W_E[queen]", first.W_E[queen], last.W_E[queen]), ("W_Q", W_Q, W_Q_last),
                   ("q", before["q"][head, i], after["q"][head, i])]:
    print(f"{name:<10} moved by {np.linalg.norm(b - a) / np.linalg.norm(a):.2f} times its initial norm")
Picture({"W_Q before": W_Q, "W_Q after": W_Q_last})""",
        """dx, dW = after["x"][i] - before["x"][i], W_Q_last - W_Q
dq = after["q"][head, i] - before["q"][head, i]
parts = {"dx W_Q": dx @ W_Q, "x dW_Q": before["x"][i] @ dW, "dx dW_Q": dx @ dW}
assert np.allclose(sum(parts.values()), dq)
for name, part in parts.items():
    print(f"{name:<8} {part @ dq / (dq @ dq):6.1%}")""",
        """from qkv.lessons.facts import gradient_paths

for name, length in gradient_paths(last).items():
    print(f"through {name:<3} {length:.3f}")""",
    ),
    "scores": (
        """i, j = words.index("and"), words.index("queen")
for name, run in (("before", before), ("after", after)):
    shares = zip(words, run["pattern"][head, i], strict=True)
    print(name, *(f"{word} {weight:.0%}" for word, weight in shares), sep="  ")
Picture({f"head {h}": after["pattern"][h] for h in range(4)})""",
        """q, k = after["q"][head, i], after["k"][head, j]
print(" + ".join(f"{term:.2f}" for term in q * k), "=", f"{q @ k:.2f}")
print("divided by sqrt(8):", round(float(q @ k / np.sqrt(len(q))), 2))""",
        """ids = last.ids(SENTENCE)
M = last.attention[0][head] @ last.attention[1][head].T / np.sqrt(len(q))  # score = x_i M x_j
for a, x in (("token", last.W_E[ids[i]]), ("position", last.W_pos[i])):
    for b, y in (("token", last.W_E[ids[j]]), ("position", last.W_pos[j])):
        print(f"{a} with {b}: {x @ M @ y:.2f}")""",
    ),
    "induction": (
        """print({f"H{h}": round(float(np.diagonal(after["pattern"][h], -1).mean()), 2) for h in range(4)})
Picture({f"head {h}": after["pattern"][h] for h in range(4)})""",
        """rng, n, losses = np.random.default_rng(1), 12, []
known = [word for word in last.tokens if word.isalpha()]
for _ in range(50):
    text = rng.permutation(known)[:n]
    loss = last.losses(" ".join([*text, *text]))
    losses.append((loss[: n - 1].mean(), loss[n:].mean()))
print("first copy, second copy:", np.mean(losses, axis=0).round(1))""",
    ),
    "contextual": (
        """def cosine(a, b):
    return round(float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)), 2)

a, b = (i for i, word in enumerate(words) if word == "the")
print("x:", cosine(after["x"][a], after["x"][b]), " after the layer:", cosine(after["post"][a], after["post"][b]))
Picture({"x": after["x"], "after the layer": after["post"]})""",
        """king = last.forward(SENTENCE.replace("queen", "king"))
i = words.index("and")
print("x changed by", np.abs(king["x"][i] - after["x"][i]).max().round(9))
print("after the layer, position 0 changed by", np.abs(king["post"][0] - after["post"][0]).max().round(9))
for word in ("she", "he"):
    t = last.tokens.index(word)
    print(f"{word}: {after['p'][i, t]:.2%} after queen, {king['p'][i, t]:.2%} after king")""",
    ),
    "identity": (
        """d, e = last.attention[0].shape[1:]
eye = np.eye(d).reshape(d, d // e, e).swapaxes(0, 1)  # each head takes its own coordinates of x
swapped = [eye, eye, *last.attention[2:]]
heads = last.forward(SENTENCE, swapped)
scores = heads["q"] @ heads["k"].swapaxes(1, 2)
print("largest asymmetry:", np.abs(scores - scores.swapaxes(1, 2)).max().round(9))
Picture({f"head {h}, W = I": heads["pattern"][h] for h in range(4)})""",
        """print("trained:", round(float(np.mean([last.losses(text).mean() for text in texts])), 3))
print("W_Q = W_K = I:", round(float(np.mean([last.losses(text, swapped).mean() for text in texts])), 3))""",
    ),
    "size": (
        """rows, d = last.W_E.shape
print(f"here: {rows * d / sizes['parameters']:.1%}")
print(f"GPT-2 small: {50257 * 768 / (768 * (50257 + 1024 + 12 * 12 * 768)):.1%}")""",
        """for width in (8, 16, 24, 32):
    frozen = first.W_E[:, :width]
    left = frozen @ np.linalg.pinv(frozen) @ last.W_E - last.W_E
    print(f"{width} columns: {np.linalg.norm(left) / np.linalg.norm(last.W_E):.1%} of the trained W_E is left over")""",
    ),
}
"""Lesson -> the code of each step."""


def notebook(name: str) -> dict[str, Any]:
    """A notebook of nbformat 4.5, executed."""
    one, scope = lesson(name), {}
    cells = [
        _prose(f"# {one.title}\n\n{one.minutes} minutes. {one.aim}\n\nOn the page: `qkv learn {name}`."),
        _code(SETUP, scope),
    ]
    if "Picture(" in "".join(CODE[name]):
        cells.append(_code(PICTURE, scope))
    for step, code in zip(one.steps, CODE[name], strict=True):
        choices = "\n".join(f"- {choice}" for choice in step.choices)
        cells += [
            _prose(f"## {step.ask}\n\nPredict first:\n\n{choices}"),
            _code(code, scope),
            _prose(f"**Answer.** {step.answer}"),
        ]
    for number, cell in enumerate(cells):
        cell["id"] = f"{name}-{number}"
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}


def _prose(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": text.splitlines(keepends=True)}


def _code(source: str, scope: dict[str, Any]) -> dict[str, Any]:
    """A cell with what it prints, and what its last expression shows."""
    tree, printed = ast.parse(source), io.StringIO()
    end = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), scope)
        shown = None if end is None else eval(compile(end, "cell", "eval"), scope)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    if shown is not None:
        data = {"image/svg+xml": shown._repr_svg_().splitlines(keepends=True), "text/plain": [repr(shown)]}
        outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
    lines = source.splitlines(keepends=True)
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "source": lines, "outputs": outputs}


def main() -> int:
    """Write the notebooks, or say which are stale."""
    stale = []
    for name in LESSONS:
        text, path = json.dumps(notebook(name), indent=1, ensure_ascii=False) + "\n", HERE / f"{name}.ipynb"
        if not path.is_file() or path.read_text("utf-8") != text:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(text, encoding="utf-8")
    print(f"{'stale' if '--check' in sys.argv else 'written'}: {', '.join(stale) or 'none'}")
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
