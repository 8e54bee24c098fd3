"""Likeness in x, q, k and v against loops, and where it is planted."""

import itertools

import numpy as np
import pytest
import torch

from qkv.randomness import generator
from qkv.studies.engine.design import Text
from qkv.studies.probes.analogies import FEWEST_WORDS, GROUPS, grouped
from qkv.studies.probes.basis import change_of_basis, triplets
from qkv.studies.question import Ask
from qkv.studies.questions import find

KIND = "nearer to one of its kind"


@pytest.fixture(scope="module")
def text_of_groups(tmp_path_factory):
    """A text of every word of the groups, by chance."""
    words = " ".join(GROUPS).split()
    path = tmp_path_factory.mktemp("text") / "groups.txt"
    path.write_text(" ".join(generator("tests", "groups").choice(words, size=20_000)))
    return path


@pytest.fixture
def model(finish, text_of_groups):
    """A model of that text at its start, with heads as wide as are needed for queries of full rank."""
    return finish(text=Text(tokenizer="word"), source=text_of_groups)


def test_a_change_of_basis_keeps_every_score_and_no_order_of_cosines(finish):
    found = change_of_basis(finish())
    assert found["scores moved"] < 1e-9 and found["q ~ q"] < 0.8


def test_triplets_are_those_of_a_loop(model):
    found, asked = triplets(model), grouped(model.corpus.tokenizer)
    assert found["triplets asked"] == 1.0 and len(asked) == len(" ".join(GROUPS).split())
    catalogue = model.parts.catalogue
    table = catalogue.view("W_E").detach().double()
    read = ((table - table.mean(1, keepdim=True)) / (table.var(1, correction=0, keepdim=True) + 1e-5).sqrt()).numpy()
    spaces = {"x": [table.numpy()]}
    for name in "QKV":
        weights = [catalogue.view(f"L0.H{h}.W_{name}").detach().double().numpy() for h in range(2)]
        spaces[name.lower()] = [read @ w for w in weights]
    for name, tables in spaces.items():
        assert found[f"triplets {name}"] == pytest.approx(np.mean([_by_loop(rows, asked) for rows in tables]), abs=1e-9)


def _by_loop(rows: np.ndarray, asked: list[tuple[int, int]]) -> float:
    vectors = [(group, rows[i]) for group, i in asked]
    middle = np.mean([v for _, v in vectors], axis=0)
    right = []
    for (g, a), (h, b) in itertools.permutations([(g, v - middle) for g, v in vectors], 2):
        if g == h:
            likeness = a @ b / np.linalg.norm(b)
            right += [likeness > a @ (c - middle) / np.linalg.norm(c - middle) for k, c in vectors if k != g]
    return 100 * (np.mean(right) - 0.5)


def test_triplets_find_planted_kinds_and_nothing_where_there_is_nothing(model):
    by_chance, asked = triplets(model), grouped(model.corpus.tokenizer)
    assert abs(by_chance["triplets x"]) < 10
    table = model.parts.catalogue.view("W_E")
    with torch.no_grad():
        for group, i in asked:
            table[i] = 0.3 * table[i] / table[i].norm()
            table[i, group] += 1.0
    planted = triplets(model)
    assert planted["triplets x"] > 45 and planted["triplets v"] > 35
    assert planted["triplets counts"] == by_chance["triplets counts"], "the text is what it was"
    assert planted["triplets q"] - planted["triplets q in another basis"] > 5, "which no score has anything to do with"


def test_triplets_are_told_only_where_enough_words_are_there(finish, long_text, text_of_groups):
    few = triplets(finish(text=Text(tokenizer="word")))
    assert set(few) == {"triplets asked"} and few["triplets asked"] < FEWEST_WORDS / len(" ".join(GROUPS).split())
    ask = find("static-or-contextual").design
    by = [
        {c.name for c in ask(Ask(source=str(path), quick=True)).contrasts if c.name.startswith(KIND)}
        for path in (text_of_groups, long_text)
    ]
    assert len(by[0]) == 6 and not by[1]
