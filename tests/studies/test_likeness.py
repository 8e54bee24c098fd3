"""Likeness of words against loops and closed forms, and the contextual probes where the answer is planted."""

import itertools

import numpy as np
import pytest
import torch

from qkv.randomness import generator
from qkv.studies.probes.analogies import N_QUESTIONS, SECTIONS, n_askable
from qkv.studies.probes.contextual import analogies, contextual
from qkv.studies.probes.likeness import agreement, common_ids, first_components, means, pair_cosines
from qkv.studies.probes.occurrences import Occurrences
from qkv.studies.question import Ask
from qkv.studies.questions import find


@pytest.fixture
def draws():
    """The same numbers for each test, whatever ran before it."""
    return generator("tests", "likeness")


def cos(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def test_cosines_of_pairs_are_those_of_a_loop(draws):
    rows = draws.normal(size=(7, 4)) + 3
    centred = rows - rows.mean(0)
    pairs = list(itertools.combinations(range(7), 2))
    assert pair_cosines(rows) == pytest.approx([cos(centred[i], centred[j]) for i, j in pairs], rel=1e-12)
    assert pair_cosines(rows, centred=False) == pytest.approx([cos(rows[i], rows[j]) for i, j in pairs], rel=1e-12)


def test_agreement_sees_through_a_change_of_coordinates_and_not_through_chance(draws):
    rows = draws.normal(size=(60, 8))
    turn = np.linalg.qr(draws.normal(size=(8, 8)))[0]
    assert agreement(pair_cosines(rows), pair_cosines(5 * rows @ turn + 2)) == pytest.approx(1.0, abs=1e-9)
    assert abs(agreement(pair_cosines(rows), pair_cosines(draws.normal(size=(60, 8))))) < 0.1
    assert agreement(pair_cosines(rows), np.ones(60 * 59 // 2)) == 0.0


def test_static_vectors_are_made_of_the_occurrences_of_each_word(draws):
    ids = np.array([3, 5, 3, 5, 3, 9])
    seen = Occurrences(ids=ids, windows=np.zeros(6), vectors=draws.normal(size=(2, 6, 4)).astype(np.float32))
    assert common_ids(ids, 2, 10).tolist() == [3, 5] and common_ids(ids, 1, 1).tolist() == [3]
    words = np.array([5, 3])
    for row, word in zip(means(seen, 1, words), words, strict=True):
        assert row == pytest.approx(seen.vectors[1][ids == word].mean(0), rel=1e-6)
    for row, word in zip(first_components(seen, 1, words), words, strict=True):
        vectors = seen.vectors[1][ids == word].astype(np.float64)
        first = np.linalg.svd(vectors)[2][0]
        assert abs(row @ first) == pytest.approx(1.0, abs=1e-6) and row @ vectors.mean(0) >= 0


def test_without_positions_layer_0_is_the_table_itself(untrained, small_text):
    found = contextual(untrained(small_text, "causal", tokenizer="word", positions="none"))
    assert found["self-similarity 0"] + found["random pairs 0"] == pytest.approx(1.0, abs=1e-6)
    assert found["mean ~ W_E 0"] == pytest.approx(1.0, abs=1e-6) and found["first ~ W_E 0"] > 0.9
    assert found["neighbours 0"] == pytest.approx(1 - 10 / (n_words(small_text) - 1), abs=1e-9)
    assert 0.1 < found["explained 0"] < 1 and abs(found["W_E ~ counts"]) < 0.5
    assert found["self-similarity 2"] < found["self-similarity 0"], "attention mixes before it is trained"


def n_words(path) -> int:
    return len(set(path.read_text().replace(".", " . ").split()))


@pytest.fixture(scope="module")
def words_of_analogies(tmp_path_factory):
    """A text of every word that our analogies ask for, by chance."""
    words = sorted({word for questions in SECTIONS.values() for question in questions for word in question})
    drawn = generator("tests", "words of analogies").choice(words, size=30_000)
    path = tmp_path_factory.mktemp("text") / "analogies.txt"
    path.write_text(" ".join(drawn))
    return path


def test_analogies_that_hold_exactly_are_all_answered_and_others_by_chance(untrained, words_of_analogies, draws):
    finished = untrained(words_of_analogies, "causal", tokenizer="word")
    by_chance = analogies(finished)
    assert by_chance["analogies asked"] == 1.0 and abs(by_chance["analogies W_E"]) < 10
    vocabulary, table = finished.corpus.tokenizer.vocabulary, finished.parts.catalogue.view("W_E")
    with torch.no_grad():
        table.copy_(torch.from_numpy(draws.normal(size=tuple(table.shape)) / np.sqrt(13)))
        # one coordinate for each relation, across all that a word is otherwise; of other lengths, so that no word has
        # two nearest neighbours (king: queen and kings)
        table[:, :3] = 0.0
        for axis, questions in enumerate(SECTIONS.values()):
            for one, other, _, _ in questions:
                table[vocabulary[other]] = table[vocabulary[one]]
                table[vocabulary[other], axis] = 1.0 + axis / 10
    planted = analogies(finished)
    n = len({word for questions in SECTIONS.values() for question in questions for word in question})
    assert planted["analogies W_E"] > 85
    by_neighbour = 100 * _by_neighbour_of_c(finished)
    assert planted["beyond c W_E"] == pytest.approx(planted["analogies W_E"] + 100 / (n - 3) - by_neighbour)
    assert by_neighbour < 100 * planted["analogies asked"]
    assert planted["analogies counts"] == by_chance["analogies counts"]


def _by_neighbour_of_c(finished) -> float:
    """By a loop over questions and words."""
    vocabulary, table = finished.corpus.tokenizer.vocabulary, finished.parts.catalogue.view("W_E").detach().numpy()
    words = {word for questions in SECTIONS.values() for question in questions for word in question}
    right = []
    for a, b, c, d in (question for questions in SECTIONS.values() for question in questions):
        likeness = {w: cos(table[vocabulary[w]], table[vocabulary[c]]) for w in words - {a, b, c}}
        right.append(max(likeness, key=lambda w: likeness[w]) == d)
    return sum(right) / len(right)


def test_analogies_are_scored_only_where_enough_can_be_asked(words_of_analogies, small_text, untrained):
    assert n_askable(["he", "she", "king", "queen", "the"]) == 2
    assert n_askable({w for qs in SECTIONS.values() for q in qs for w in q}) == N_QUESTIONS
    few = analogies(untrained(small_text, "causal", tokenizer="word"))
    assert few == {"analogies asked": 0.0}
    scored = find("static-or-contextual").design(Ask(source=str(words_of_analogies), quick=True))
    named = find("static-or-contextual").design(Ask(named=("a text", "0" * 64), quick=True))
    by = [{c.name for c in design.contrasts if c.name.startswith("analogies by")} for design in (scored, named)]
    assert len(by[0]) == 10 and not by[1]
