"""Pairs of a text in fours: what they were chosen by, how well they are matched, and what is measured on them."""

from collections import Counter

import numpy as np
import pytest

from qkv.inspection.token_rows import rank_correlation
from qkv.randomness import generator
from qkv.studies.engine.design import Text
from qkv.studies.engine.initial_tables import offsets_of, pair_counts, ppmi
from qkv.studies.probes.collocations import FEWEST_FOURS, chosen, collocations, second_order
from qkv.studies.probes.pairs import commonest_word
from qkv.studies.probes.registry import PROBES
from qkv.studies.question import Ask
from qkv.studies.questions import find
from qkv.studies.synthetic.streams import CELLS, corpus

WORDS = Text(tokenizer="word", vocab=400)


@pytest.fixture(scope="module")
def topical(tmp_path_factory):
    """A text of 120,000 words of ten kinds: each kind follows one other, and some words have a fixed companion."""
    from qkv.studies.synthetic.streams import word

    draws, kinds = generator("tests", "topical"), np.arange(240) % 10
    follows, out, kind = draws.permutation(10), [], 0
    members = [np.flatnonzero(kinds == k) for k in range(10)]
    while len(out) < 120_000:
        mine = members[kind]
        here = int(mine[min(int(draws.zipf(1.4)) - 1, 10**6) % len(mine)])
        out.append(here)
        if here % 4 == 1 and draws.random() < 0.4:
            out.append((here * 7 + 3) % 240)
        kind = int(follows[kind]) if draws.random() < 0.7 else int(draws.integers(10))
    path = tmp_path_factory.mktemp("text") / "topical.txt"
    path.write_text(" ".join(word(i) for i in out), encoding="utf-8")
    return path


def test_counts_of_pairs_are_those_of_a_loop():
    ids = generator("tests", "pair counts").integers(6, size=200)
    found = Counter()
    for i in range(200):
        for j in (i + 1, i + 2):
            if j < 200:
                found[int(ids[i]), int(ids[j])] += 1
                found[int(ids[j]), int(ids[i])] += 1
    assert np.array_equal(pair_counts(ids, 7), [[found[a, b] for b in range(7)] for a in range(7)])


def test_pairs_are_not_counted_across_the_ends_of_documents(labelled, kept):
    for stream in ("text", "labelled"):
        made = corpus(Text(stream=stream, tokenizer="word", vocab=400), str(labelled), 0, kept)
        ids, offsets, d_vocab = made.train.ids, offsets_of(made), made.tokenizer.d_vocab
        counted = sum(pair_counts(ids[a:b], d_vocab) for a, b in zip(offsets, offsets[1:], strict=False))
        assert np.array_equal(pair_counts(ids, d_vocab, offsets), counted)
        assert counted.sum() < 0.95 * pair_counts(ids, d_vocab).sum()
        words = chosen(made).words
        assert np.array_equal(chosen(made).known["PPMI"], ppmi(ids, d_vocab, offsets)[np.ix_(words, words)])


def test_second_order_similarity_is_the_cosine_without_the_pairs_own_cells():
    information = ppmi(generator("tests", "second order").integers(12, size=400), 12)
    words = np.array([7, 2, 9, 4])
    found = second_order(information, words)
    for i, a in enumerate(words):
        for j, b in enumerate(words):
            if i != j:
                others = np.delete(information, [a, b], axis=1)
                expected = others[a] @ others[b] / (np.linalg.norm(others[a]) * np.linalg.norm(others[b]))
                assert found[i, j] == pytest.approx(expected)


def test_pairs_of_a_four_are_of_their_cells_and_matched(topical, kept):
    made = corpus(WORDS, str(topical), 0, kept)
    fours = chosen(made)
    assert len(fours) >= FEWEST_FOURS
    ids, d_vocab = made.train.ids, made.tokenizer.d_vocab
    counts, information, often = np.bincount(ids, minlength=d_vocab), ppmi(ids, d_vocab), pair_counts(ids, d_vocab)
    second, rows = second_order(information, fours.words), {int(w): i for i, w in enumerate(fours.words)}
    every = second[np.triu_indices(len(fours.words), 1)]
    of = {cell: [second[rows[int(a)], rows[int(b)]] for a, b in pairs] for cell, pairs in fours.pairs.items()}
    for cell, pairs in fours.pairs.items():
        assert len({tuple(sorted(pair)) for pair in pairs.tolist()}) == len(fours), "each pair is used once"
        for (a, b), alike in zip(pairs, of[cell], strict=True):
            assert made.tokenizer.token(int(a)).isalpha() and min(counts[a], counts[b]) >= 20
            if cell.together:
                assert often[a, b] >= 5 and information[a, b] >= 1
            else:
                assert information[a, b] == 0
            assert alike >= np.quantile(every, 0.9) if cell.shared else alike <= np.quantile(every, 0.5)
    both, alone, alike, neither = CELLS
    for n in range(len(fours)):
        logs = {cell: np.log(counts[pairs[n]]) for cell, pairs in fours.pairs.items()}
        for cell in CELLS:
            assert np.abs(logs[cell] - logs[alone]).max() <= 0.5 + 1e-9
        first = [information[tuple(fours.pairs[cell][n])] for cell in (both, alone)]
        assert abs(first[0] - first[1]) <= 0.5
        for one, other in ((both, alike), (alone, neither)):
            assert abs(of[one][n] - of[other][n]) <= 0.25 * every.std() + 1e-9


def test_an_effect_is_the_mean_over_fours_of_centred_cosines(topical, finish):
    finished = finish(text=WORDS, source=topical)
    fours, found = chosen(finished.corpus), collocations(finished)
    table = finished.parts.catalogue.view("W_E").detach().double().numpy()
    rows = table - table[fours.words].mean(0)

    def cosine(a: int, b: int) -> float:
        return rows[a] @ rows[b] / (np.linalg.norm(rows[a]) * np.linalg.norm(rows[b]))

    mean = {cell: np.mean([cosine(a, b) for a, b in pairs]) for cell, pairs in fours.pairs.items()}
    both, alone, alike, neither = (mean[cell] for cell in CELLS)
    assert found["fours"] == len(fours)
    assert found["together cos(e, e)"] == pytest.approx((both + alone - alike - neither) / 2)
    assert found["shared cos(e, e)"] == pytest.approx((both + alike - alone - neither) / 2)
    assert abs(found["together log count"]) < 0.2 and abs(found["shared log count"]) < 0.2
    assert abs(found["together second order"]) < 0.1 < found["shared second order"]
    assert abs(found["shared PPMI"]) < 0.3 and found["together PPMI"] > 1
    assert "together contextual cos" not in found


def test_a_text_with_too_few_pairs_is_told_so_and_asked_nothing_of_them(finish, long_text, kept, topical):
    few = collocations(finish(text=WORDS, source=long_text))
    assert set(few) == {"fours"} and few["fours"] < FEWEST_FOURS
    measured = collocations(finish(text=WORDS, source=topical)).keys()
    for quick in (True, False):
        few = find("collocation").design(Ask(source=str(long_text), quick=quick, cache=kept))
        enough = find("collocation").design(Ask(source=str(topical), quick=quick, cache=kept))
        told = find("collocation").design(Ask(named=("a text", "0" * 64), quick=quick))
        assert [arm.name for arm in few.arms if arm.text == "text"] == ["own text"]
        assert not [c for c in few.contrasts if c.name.endswith("(own text)") and "->" in c.name]
        assert [c.name for c in enough.contrasts] == [c.name for c in told.contrasts]
        assert [arm.name for arm in enough.arms] == [arm.name for arm in told.arms]
        asked = {c.name: c for c in enough.contrasts}
        read = {q for c in enough.contrasts for _, arm, q in c.terms if arm.startswith("own text")}
        assert read - measured == {
            "beyond frequencies", "dot of the word", "dot of the word over others", "dot of the word with common",
            "dot of the word with rare", "dot of the word by count", "dot by count",
        }  # fmt: skip
        assert asked["shared -> cos(e, e) (own text)"].needs == "learned (own text)"
        assert asked["together -> second order"].constant and asked["fours of pairs"].constant
        assert {f"{factor} -> cos(e, e) (own text {null})" for factor in ("together", "shared")
                for null in ("untrained", "contrastive")} <= asked.keys()  # fmt: skip
        assert enough.primary.name == "together -> cos(e, e) (causal)" and not enough.primary.gates


def test_the_commonest_word_is_held_against_all_others_by_their_frequency(finish):
    finished = finish(text=Text(tokenizer="word"))
    counts = Counter(finished.corpus.train.ids.tolist())
    special = set(finished.corpus.tokenizer.special.values())
    words = sorted(i for i in counts if i not in special)
    tokenizer = finished.corpus.tokenizer
    common = max((i for i in words if tokenizer.token(i).isalpha()), key=lambda i: counts[i])
    table = finished.parts.catalogue.view("W_E").detach().double().numpy()
    others = sorted((i for i in words if i != common), key=lambda i: -counts[i])
    every = table[words] @ table[words].T
    off = ~np.eye(len(words), dtype=bool)
    size = np.sqrt((every[off] ** 2).mean())
    own, often = table[others] @ table[common], np.array([counts[i] for i in others])
    mean = {i: np.delete(every[at], at).mean() for at, i in enumerate(words)}
    found = PROBES["commonest word"](finished)
    assert found["dot of the word"] == pytest.approx(own.mean() / size)
    assert found["dot of the word over others"] == pytest.approx(
        (mean[common] - np.mean([mean[i] for i in others])) / size
    )
    assert found["dot of the word with common"] == pytest.approx(own[: len(own) // 10].mean() / size)
    assert found["dot of the word with rare"] == pytest.approx(own[len(own) // 2 :].mean() / size)
    assert found["dot of the word by count"] == pytest.approx(rank_correlation(own, often))
    assert found["dot by count"] == pytest.approx(
        rank_correlation(np.array([mean[i] for i in words]), np.array([counts[i] for i in words]))
    )


def test_the_commonest_word_is_of_letters_whatever_is_commoner(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("the cat, the dog, a bird, two, or the fish, or none: so, so.\n" * 200)
    corpus = Ask(source=str(path), cache=tmp_path).corpus(Text(tokenizer="word"))
    word, counts = commonest_word(corpus)
    assert corpus.tokenizer.token(word) == "the" and corpus.tokenizer.token(int(counts.argmax())) == ","
    assert counts[word] == Counter(corpus.train.ids.tolist())[word]
    path.write_text("1, 2, 3, 4: 5, 6.\n" * 400)
    digits = Ask(source=str(path), cache=tmp_path).corpus(Text(tokenizer="word"))
    word, counts = commonest_word(digits)
    assert word == counts.argmax() and digits.tokenizer.token(word) == ","
