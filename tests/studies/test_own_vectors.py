"""Published word vectors beside a text: the control of `static-or-contextual`."""

import pytest

from qkv.data.vectors import holds_vectors
from qkv.errors import SourceError
from qkv.randomness import generator
from qkv.studies.engine.training import run_trial
from qkv.studies.probes.analogies import GROUPS, SECTIONS
from qkv.studies.question import Ask
from qkv.studies.questions import find
from qkv.studies.synthetic.streams import Given, given

WORDS = sorted(
    {w for questions in SECTIONS.values() for question in questions for w in question} | set(" ".join(GROUPS).split())
)


@pytest.fixture
def text(tmp_path):
    """A text of the words of analogies and groups, by chance."""
    path = tmp_path / "words.txt"
    path.write_text(" ".join(generator("tests", "own vectors").choice(WORDS, size=40_000)))
    return path


@pytest.fixture
def vectors(tmp_path):
    """Vectors of most of them in which a relation is one step, and a group one direction."""
    draws, values = generator("tests", "planted vectors"), {}
    for questions in SECTIONS.values():
        step = 3 * draws.normal(size=40)
        for a, b, c, d in questions:
            for word, other in ((a, b), (c, d)):
                values.setdefault(word, draws.normal(size=40))
                values[other] = values[word] + step
    for words in GROUPS:
        middle = 4 * draws.normal(size=40)
        for word in words.split():
            values.setdefault(word, middle + draws.normal(size=40))
    del values["wife"]
    path = tmp_path / "published.txt"
    path.write_text("".join(f"{w} {' '.join(f'{x:.5f}' for x in v)}\n" for w, v in values.items()))
    return path


def test_a_file_of_vectors_is_told_from_a_text(text, vectors, tmp_path):
    assert holds_vectors(vectors) and not holds_vectors(text) and not holds_vectors(tmp_path / "none.txt")
    headed = tmp_path / "headed.txt"
    headed.write_text("2 3\nthe 1 2 3\na 4 5 6\n")
    assert holds_vectors(headed)
    assert given(f"{text}:{vectors}") == Given(text=str(text), vectors=str(vectors))
    assert given(f"{text}:{text}") == Given(text=f"{text}:{text}")


def test_published_vectors_answer_what_is_planted_in_them(text, vectors):
    source = f"{text}:{vectors}"
    design, alone = (find("static-or-contextual").design(Ask(source=s, quick=True)) for s in (source, str(text)))
    more = {c.name for c in design.contrasts} - {c.name for c in alone.contrasts}
    assert more == {
        "analogies by published (published vectors) beyond chance",
        "analogies by published (published vectors) beyond the nearest neighbour of c",
        "nearer to one of its kind: published vectors",
    }
    arm = design.arm("published vectors")
    row = run_trial(design.trial(arm, 1, 0, source=source, report=True), None)
    found = row["measures"]
    assert found["analogies published"] > 90 and found["triplets published"] > 25
    assert 0.8 < found["analogies asked"] < 1, "one word has no vector"
    keys = [d.trial(d.arm("causal"), 1, 0, source="", report=True).key for d in (design, alone)]
    assert keys[0] == keys[1], "the models are the same, and count for both"
    vectors.write_text(vectors.read_text() + "more" + " 1" * 40 + "\n")
    with pytest.raises(SourceError, match="have changed since the study began"):
        run_trial(design.trial(arm, 1, 0, source=source, report=True), None)


def test_what_is_wrong_with_vectors_is_said_before_anything_is_made(text, vectors):
    with pytest.raises(SourceError, match="three-roles asks nothing of word vectors"):
        find("three-roles").design(Ask(source=f"{text}:{vectors}", quick=True))
    with pytest.raises(SourceError, match="no file or folder '/no/where.txt', which was given beside"):
        find("static-or-contextual").design(Ask(source=f"{text}:/no/where.txt", quick=True))
    vectors.write_text(vectors.read_text() + "short 1 2\n")
    with pytest.raises(SourceError, match="numbers"):
        find("static-or-contextual").design(Ask(source=f"{text}:{vectors}", quick=True))
