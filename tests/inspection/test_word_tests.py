"""Analogies and similarity against plain loops, scipy, and vectors whose answers are known."""

import numpy as np
import pytest

from qkv.data.vectors import Vectors, read_vectors
from qkv.errors import SourceError
from qkv.inspection.token_rows import ranks
from qkv.inspection.word_tests import answered, questions, scored_pairs, similarity
from qkv.randomness import generator

stats = pytest.importorskip("scipy.stats", reason="needs the dev extra (scipy)")
WORDS = tuple(f"w{i}" for i in range(30))


@pytest.fixture
def vectors() -> Vectors:
    return Vectors(words=WORDS, values=generator("tests", "words").standard_normal((30, 6)).astype(np.float32))


def by_a_loop(vectors: Vectors, question: list[str], mul: bool) -> bool:
    """One question, word by word, as the papers write it."""
    values = vectors.values.astype(np.float64)
    a, b, c, d = (values[vectors.rows[word]] for word in question)

    def cos(x, y):
        return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))

    def score(x):
        if mul:
            return (cos(x, b) + 1) / 2 * (cos(x, c) + 1) / 2 / ((cos(x, a) + 1) / 2 + 0.001)
        target = b / np.linalg.norm(b) - a / np.linalg.norm(a) + c / np.linalg.norm(c)
        return cos(x, target)

    options = [word for word in vectors.words if word not in question[:3]]
    return max(options, key=lambda word: score(values[vectors.rows[word]])) == question[3]


def test_both_ways_of_asking_equal_a_loop_over_all_words(vectors, tmp_path):
    draws = generator("tests", "questions")
    asked = [[WORDS[i] for i in draws.permutation(30)[:4]] for _ in range(500)]
    for mul in (False, True):  # half of the questions get the loop's own answer, so that some are right
        for question in asked[:120]:
            options = [w for w in WORDS if w not in question[:3]]
            question[3] = next(w for w in options if by_a_loop(vectors, [*question[:3], w], mul))
    path = tmp_path / "q.txt"
    path.write_text("\n".join(" ".join(q) for q in asked))
    (only, every) = answered(vectors, questions(path))
    expected = [np.mean([by_a_loop(vectors, q, mul) for q in asked]) for mul in (False, True)]
    assert (only.add, only.mul) == pytest.approx(expected) and min(expected) > 0.1
    assert (every.add, every.n_asked) == (only.add, 500) and every.chance == 1 / 27
    low, high = only.add_interval
    test = stats.binomtest(round(only.add * 500), 500).proportion_ci(method="wilson")
    assert (low, high) == pytest.approx((test.low, test.high), abs=1e-4)


def test_an_exact_parallelogram_is_answered_and_missing_words_only_lower_the_coverage(tmp_path):
    values = {"king": (1, 1, 0), "queen": (1, -1, 0), "man": (0, 1, 0), "woman": (0, -1, 0), "tree": (0, 0, 1)}
    vectors = Vectors(words=tuple(values), values=np.array(list(values.values()), np.float32))
    path = tmp_path / "q.txt"
    path.write_text(": royal\nman King woman queen\nman king woman princess\n: trees\noak tree ash bush\n")
    royal, trees, every = answered(vectors, questions(path))
    assert (royal.n_questions, royal.n_asked, royal.add, royal.mul) == (2, 1, 1.0, 1.0)  # "King" is found as "king"
    assert (trees.n_asked, trees.add, trees.add_interval) == (0, None, None)
    assert (every.name, every.n_questions, every.n_asked, every.chance) == ("all", 3, 1, 0.5)


def test_ranks_and_the_correlation_equal_scipy(vectors, tmp_path):
    draws = generator("tests", "pairs")
    pairs = [(*(WORDS[i] for i in draws.permutation(30)[:2]), int(draws.integers(0, 6))) for _ in range(40)]
    path = tmp_path / "pairs.tsv"
    path.write_text("Word 1\tWord 2\tHuman (mean)\n" + "".join(f"{a}\t{b}\t{s}\n" for a, b, s in pairs) + "w0\tno\t3\n")
    found = similarity(vectors, scored_pairs(path))
    unit = vectors.values / np.linalg.norm(vectors.values, axis=1, keepdims=True)
    cosines = [float(unit[vectors.rows[a]] @ unit[vectors.rows[b]]) for a, b, _ in pairs]
    assert found.spearman == pytest.approx(stats.spearmanr(cosines, [s for *_, s in pairs]).statistic)
    assert (found.n_pairs, found.n_scored) == (41, 40) and found.interval[0] < found.spearman < found.interval[1]
    scores = np.array([s for *_, s in pairs], dtype=float)
    assert np.array_equal(ranks(scores), stats.rankdata(scores))


@pytest.mark.parametrize(
    "read, text, sentence",
    [
        (questions, "a b c\n", "line 1: expected four words"),
        (questions, ": empty\n", "holds no analogies"),
        (scored_pairs, "a b 1\nc d\n", "line 2: expected two words and a score"),
        (scored_pairs, "\n", "holds no pairs"),
    ],
)
def test_a_file_of_another_kind_is_told(tmp_path, read, text, sentence):
    (tmp_path / "x").write_text(text)
    with pytest.raises(SourceError, match=sentence):
        read(tmp_path / "x")
    with pytest.raises(SourceError, match="does not exist"):
        read(tmp_path / "none")


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path):
    path = tmp_path / "x"
    path.write_text(": royal\nman king woman queen\n", encoding="utf-8-sig")
    assert questions(path) == {"royal": [["man", "king", "woman", "queen"]]}
    path.write_text("king\tqueen\t8\ncat\tdog\t9\n", encoding="utf-8-sig")
    assert scored_pairs(path) == [("king", "queen", 8.0), ("cat", "dog", 9.0)]


def test_the_published_control_knows_words_far_better_than_chance(real_data):
    files = [real_data / name for name in ("glove-4k/glove50_4k.txt.gz", "google-analogies/questions-words.txt")]
    files.append(real_data / "wordsim353" / "EN-WS-353-ALL.txt")
    if not all(file.is_file() for file in files):
        pytest.skip("QKV_DATA holds no glove-4k, google-analogies or wordsim353")
    vectors = read_vectors(files[0])
    every, alike = answered(vectors, questions(files[1]))[-1], similarity(vectors, scored_pairs(files[2]))
    assert every.n_questions == 19_544 and alike.n_pairs == 353
    assert every.add > 100 * every.chance and alike.interval[0] > 0.3
