"""The lessons: their numbers are those of torch, their texts are whole, and the command prints and opens them."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from qkv import cli
from qkv.errors import UserError
from qkv.lessons import LESSONS
from qkv.lessons.check import SAYS
from qkv.lessons.course import TEXTS, lesson, lines, write_page
from qkv.lessons.facts import AND, FACTS, SENTENCE, _looker, gradient_paths, models

DOCS = Path(__file__).parents[2] / "docs"


def torch_forward(model, text):
    """By torch: x, the pattern, z's gradient path and the loss, each matrix a leaf."""
    ids = torch.tensor(model.ids(text))
    x = torch.tensor(model.W_E)[ids] + torch.tensor(model.W_pos)[: len(ids)]
    x.requires_grad_()
    W_Q, W_K, W_V, W_O = (torch.tensor(W) for W in model.attention)
    q, k, v = (torch.einsum("nd,hde->hne", x, W) for W in (W_Q, W_K, W_V))
    for one in (q, k, v):
        one.retain_grad()
    z = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    middle = x + torch.einsum("hne,hed->nd", z, W_O)
    W_in, W_out = map(torch.tensor, model.mlp)
    post = middle + F.gelu(middle @ W_in) @ W_out
    logits = post @ torch.tensor(model.W_U)
    return SimpleNamespace(ids=ids, x=x, q=q, k=k, v=v, post=post, logits=logits)


def test_the_model_of_the_lessons_is_torch_s():
    for model in models()[:2]:
        ours, theirs = model.forward(SENTENCE), torch_forward(model, SENTENCE)
        for name in ("x", "q", "k", "v", "post"):
            np.testing.assert_allclose(ours[name], getattr(theirs, name).detach(), atol=1e-9)
        np.testing.assert_allclose(ours["p"], theirs.logits.softmax(-1).detach(), atol=1e-9)
        wanted = F.cross_entropy(theirs.logits[:-1], theirs.ids[1:], reduction="none").detach()
        np.testing.assert_allclose(model.losses(SENTENCE), wanted, atol=1e-9)


def test_the_paths_of_the_gradient_are_torch_s():
    last = models()[1]
    t = torch_forward(last, SENTENCE)
    F.cross_entropy(t.logits[:-1], t.ids[1:]).backward()
    for name, bar, W in zip("QKV", (t.q.grad, t.k.grad, t.v.grad), last.attention[:3], strict=True):
        part = np.einsum("hne,hde->nd", bar.numpy(), W)
        assert gradient_paths(last)[name] == pytest.approx(np.linalg.norm(part), rel=1e-9)


def test_shares_of_the_change_of_q_add_up_and_the_terms_are_the_score():
    shares = [float(FACTS["trained"]()[name].rstrip("%")) for name in ("by_x", "by_W", "by_both")]
    assert sum(shares) == pytest.approx(100, abs=1.5)
    told, last = FACTS["scores"](), models()[1]
    kept = last.forward(SENTENCE)
    q, k = kept["q"][told["head"], AND], kept["k"][told["head"], 1]
    assert float(told["score"]) == pytest.approx(float(q @ k / np.sqrt(len(q))), rel=0.05)
    terms = [float(part.replace(" ", "")) for part in re.findall(r"-? ?\d+\.?\d*", told["terms"])]
    assert sum(terms) == pytest.approx(float(q @ k), rel=0.05)
    sources = map(float, re.findall(r"-?[\d.]+(?= \()", told["sources"]))
    assert sum(sources) == pytest.approx(float(told["score"]), abs=0.1)


def test_what_the_texts_say_in_words_holds_of_the_model():
    told = FACTS["contextual"]()
    assert float(told["she"].rstrip("%")) > 50 < float(told["he_king"].rstrip("%"))
    assert told["x_changed"] == told["before"] == "0"
    assert FACTS["scores"]()["top"] == "queen" and FACTS["identity"]()["asymmetry"] in ("0", "about 0")
    assert FACTS["size"]()["left"] == "under 0.01%"
    size = FACTS["size"]()
    assert size["share_gpt2"] == "31%" and size["rows"] <= size["d"]  # 38.6 of 124 million
    assert FACTS["induction"]()["easier"] == "No"


def test_lessons_have_two_or_three_whole_steps():
    assert tuple(TEXTS) == tuple(FACTS) == LESSONS and len(LESSONS) == 6
    for name in LESSONS:
        one = lesson(name)
        assert 2 <= len(one.steps) <= 3 and one.minutes > 0
        for step, raw in zip(one.steps, TEXTS[name]["steps"], strict=True):
            assert len(step.choices) >= 2 and step.ask.endswith("?") and "{" not in step.do + step.ask + step.answer
            assert "{" in raw["answer"], "an answer reveals a number of the model"
            words = step.drive["sentence"].split()
            assert models()[1].ids(step.drive["sentence"]) and 0 <= step.drive["token"] < len(words)
    with pytest.raises(UserError, match="did you mean 'scores'"):
        lesson("score")


def test_no_number_of_the_model_is_written_by_hand():
    for name, told in TEXTS.items():
        for step in told["steps"]:
            bare = re.sub(r"\{\w+\}", "", step["answer"]).replace("W = I", "")
            found = set(re.findall(r"\d[\d,.]*\d|\d", bare))
            assert found <= {"1", "0", "50", "12", "2", "50,257", "768"}, (name, found)  # sizes, and cosine 1


def test_the_command_prints_lists_and_writes(tmp_path, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr("qkv.views.browser.open_browser", opened.append)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["learn", "scores", "--text"]) == 0
    said = capsys.readouterr().out
    assert said.count("Predict:") == said.count("Answer:") == 3 and max(map(len, said.split("\n"))) <= 100
    assert cli.main(["learn", "--text"]) == 0
    assert capsys.readouterr().out.count("minutes)") == 6
    assert cli.main(["learn", "size", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lessons"][0]["name"] == "size"
    assert not opened and not (tmp_path / "learn.html").exists()
    assert cli.main(["learn", "scores"]) == 0
    assert opened == [(tmp_path / "learn.html").as_uri() + "#lesson=scores"]
    assert cli.main(["learn"]) == 0 and opened[1] == (tmp_path / "learn.html").as_uri()
    assert "lessons: trained, scores" in capsys.readouterr().out


def test_mistakes_of_the_command_are_one_sentence(tmp_path, capsys):
    for words, said in (
        (["scores", "mine.py"], "one argument too many"),
        (["score"], "did you mean 'scores'"),
        (["scores", "--out", str(tmp_path / "no" / "a.html")], "no"),
        (["--run", str(tmp_path)], str(tmp_path)),
        (["--json", "--out", "a.html"], "--out has no effect where qkv learn prints lessons; leave it out"),
        (["--template"], "--template has no effect where qkv learn writes the page; leave it out"),
        (["scores", "--text", "--seconds", "3"], "--seconds has no effect where"),
        (["check", "mine.py", "--text"], "--text has no effect where qkv learn checks a file; leave it out"),
    ):
        assert cli.main(["learn", *words]) == 2, words
        assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_page_of_a_run_is_not_said_to_hold_lessons(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("qkv.views.browser.open_browser", lambda address: None)
    monkeypatch.setattr("qkv.lessons.course.write_page", lambda path, run: None)
    (tmp_path / "config.toml").touch()
    assert cli.main(["learn", "--run", str(tmp_path), "--out", str(tmp_path / "a.html")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'a.html'}  (open it in a browser)\n"
    assert cli.main(["learn", "--run", str(tmp_path), "--text"]) == 2
    assert "--run has no effect where qkv learn prints lessons; leave it out" in capsys.readouterr().err


def test_the_end_of_the_input_ends_a_lesson_quietly(capsys, monkeypatch):
    def ended(prompt):
        raise EOFError

    monkeypatch.setattr("builtins.input", ended)
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    assert cli.main(["learn", "scores", "--text"]) == 0
    out, err = capsys.readouterr()
    assert "Predict:" in out and "Answer:" not in out and err == ""


def test_a_pause_comes_before_each_answer():
    said = []
    for line in lines("trained", lambda: said.append("pause")):
        said.append(line)
    assert said.count("pause") == 3
    assert all("Predict" in said[at - 1] and "Answer" in said[at + 1] for at, one in enumerate(said) if one == "pause")


def test_the_page_holds_every_lesson_and_stays_small(tmp_path):
    write_page(tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    held = json.loads(re.search(r'id="lessons">(.*?)</script>', text, re.S)[1])
    assert [one["name"] for one in held] == list(LESSONS)
    assert len(text.encode()) < 3_000_000 and text.count("</body>") == 1 and text.rstrip().endswith("</html>")
    assert held[0]["steps"][0]["drive"]["head"] == _looker()


def figures(outputs):
    """The words that cells print, and the numbers."""
    text = " ".join("".join(out.get("text", [])) for out in outputs)
    return re.sub(r"-?\d+(\.\d+)?", "#", text), [float(n) for n in re.findall(r"-?\d+(?:\.\d+)?", text)]


@pytest.mark.parametrize("name", LESSONS)
def test_a_notebook_is_what_its_program_writes_and_its_cells_run(name):
    spec = importlib.util.spec_from_file_location("make_lessons", DOCS / "lessons" / "make.py")
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    kept = json.loads((DOCS / "lessons" / f"{name}.ipynb").read_text("utf-8"))
    made = make.notebook(name)
    assert kept["nbformat"] == 4 and len(kept["cells"]) == len(made["cells"]) == 2 + (name != "size") + 3 * len(
        lesson(name).steps
    )
    for old, new in zip(kept["cells"], made["cells"], strict=True):
        assert (old["cell_type"], old["source"], old["id"]) == (new["cell_type"], new["source"], new["id"])
        if old["cell_type"] == "code":
            (words, numbers), (words_now, numbers_now) = figures(old["outputs"]), figures(new["outputs"])
            assert words == words_now and (old["outputs"] or old["source"][0].startswith("class Picture"))
            np.testing.assert_allclose(numbers, numbers_now, rtol=0.02, atol=0.11)
    pictures = [
        out for cell in kept["cells"] for out in cell.get("outputs", []) if "image/svg+xml" in out.get("data", {})
    ]
    assert len(pictures) >= (name != "size")


def test_the_solution_on_the_page_for_teachers_passes(tmp_path, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "teaching-solutions.md").read_text("utf-8"), re.S)
    (tmp_path / "mine.py").write_text(code)
    assert cli.main(["learn", "check", str(tmp_path / "mine.py")]) == 0
    assert capsys.readouterr().out.count(" is right: ") == 2


def test_the_page_for_teachers_says_what_is_there():
    page = (DOCS / "teaching.md").read_text("utf-8")
    for name in LESSONS:
        assert f"| [`{name}`](lessons/{name}.ipynb) | {lesson(name).minutes} |" in page
    n = {part: len(SAYS[part]) for part in ("attention", "attention_backward")}
    assert (
        f"{n['attention']} typical mistakes in the forward pass and {n['attention_backward']} in the backward" in page
    )
    assert SAYS["attention"]["softmax-queries"] in page
