"""Words under tokenizers: the same list for all, vectors of pieces by hand, and what spelling alone lets agree."""

import re

import numpy as np
import pytest

from qkv.errors import SourceError
from qkv.studies.engine.design import Text
from qkv.studies.probes.likeness import pair_cosines
from qkv.studies.probes.occurrences import occurrences
from qkv.studies.probes.relatedness import compared
from qkv.studies.probes.words import common_words, last_pieces, pieces_of, word_relatedness
from qkv.studies.question import Ask
from qkv.studies.questions import find

KINDS = {"char": 0, "byte": 0, "bpe": 300, "wordpiece": 200, "unigram": 200, "word": 200}


@pytest.fixture
def cut(finish):
    """cut(kind): a model at its start of the small text cut so."""
    return lambda kind: finish(text=Text(tokenizer=kind, vocab=KINDS[kind]))


def test_the_commonest_words_are_those_of_letters_behind_a_space_whatever_the_pieces_of_text():
    text = "up a cat, a cat's c3t cat. The end a cat_ 3a a"
    assert common_words(iter([text])) == ["The", "a", "cat", "end"]
    many = " ".join(f"{word} " * n for n, word in enumerate(["x" * i for i in range(1, 80)], start=1))
    assert common_words(iter([many])) == sorted("x" * i for i in range(16, 80)), "the 64 commonest"


@pytest.mark.parametrize("kind", KINDS)
def test_the_pieces_of_a_word_spell_it_and_hold_no_white_space(kind, cut):
    finished = cut(kind)
    tokenizer = finished.corpus.tokenizer
    for word in common_words(finished.corpus.text("train")):
        pieces = [tokenizer.token(i) for i in pieces_of(word, tokenizer)]
        assert "".join(piece.removeprefix("##").strip() for piece in pieces) == word and all(map(str.strip, pieces))
    assert pieces_of("Ωmega", tokenizer) == [] or kind in ("byte", "bpe")


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_piece_of_every_occurrence_is_found_where_the_word_ends(kind, cut):
    finished = cut(kind)
    tokenizer, seen = finished.corpus.tokenizer, occurrences(finished, 1024)
    places = last_pieces(seen, tokenizer, frozenset(["queen", "likes"]))
    inside = 0
    for window in np.unique(seen.windows):
        inside += len(
            re.findall(r"(?<= )(?:queen|likes)(?=[ .\n])", tokenizer.decode(seen.ids[seen.windows == window]))
        )
    assert len(places["queen"]) > 5 and len(places["likes"]) > 5
    if kind not in ("wordpiece", "word"):  # which decode without the space that a window begins with
        assert len(places["queen"]) + len(places["likes"]) == inside
    for word, found in places.items():
        for place in found:
            n = len(pieces_of(word, tokenizer))
            assert seen.ids[place - n + 1 : place + 1].tolist() == pieces_of(word, tokenizer)
            assert seen.windows[place] == seen.windows[place - n + 1]


@pytest.mark.parametrize("kind", ["char", "bpe", "word"])
def test_a_word_is_the_mean_of_the_rows_of_its_pieces(kind, cut):
    finished = cut(kind)
    tokenizer, table = finished.corpus.tokenizer, finished.parts.catalogue.view("W_E").detach().double().numpy()
    words = common_words(finished.corpus.text("train"))
    rows = np.stack([np.mean([table[i] for i in pieces_of(word, tokenizer)], axis=0) for word in words])
    expected = pair_cosines(rows)
    found = word_relatedness(finished)
    told = [value for key, value in found.items() if key.startswith("W_E|text|")]
    assert told == pytest.approx(expected, abs=1e-6)
    assert found[f"W_E|text|{words[0]}|{words[1]}"] == pytest.approx(expected[0], abs=1e-6)
    assert any(key.startswith("mean|text|") for key in found) and found["replicate"] == 1.0


def test_too_few_words_behind_a_space_are_refused_in_a_sentence(finish, tmp_path):
    path = tmp_path / "numbers.txt"
    path.write_text(" ".join(str(i * 7919 % 30) for i in range(8000)))
    with pytest.raises(SourceError, match="0 words of letters stand behind a space"):
        word_relatedness(finish(source=path))


def test_models_at_their_start_agree_by_spelling_where_words_share_pieces(untrained, small_text):
    """So the start is the null of a tokenizer, and 0 is not."""

    def agree(kind: str) -> float:
        rows = [word_relatedness(untrained(small_text, "causal", tokenizer=kind, seed=seed)) for seed in (1, 2)]
        again = {key.replace("|text|", "|text again|"): value for key, value in rows[1].items()} | {"replicate": 1.0}
        return compared([rows[0], again])[0]["W_E: text ~ text"]

    assert agree("char") > 0.3 and abs(agree("word")) < 0.25


def test_a_model_at_its_start_is_compared_with_the_other_seed_alone():
    rise = np.arange(6.0)
    rows = [
        {"replicate": 1.0} | {f"W_E|{name}|a|{'bcdefg'[i]}": float(x) for i, x in enumerate(values)}
        for name, values in {"x untrained": -rise, "y": rise, "y again": rise**3}.items()
    ]
    found = compared(rows)[0]
    assert found["W_E: x untrained ~ y"] == pytest.approx(-1.0) == found["W_E: y ~ x untrained"]
    assert "W_E: x untrained ~ x untrained" not in found and "W_E: ceiling x untrained ~ y" not in found


def test_every_cut_that_is_compared_with_words_has_a_twin_a_start_and_its_conditions():
    design = find("tokenizers").design(Ask(named=("a text", "0" * 64)))
    asked = [c for c in design.contrasts if c.unit == "rank correlation"]
    assert len(asked) == 3 * 2 * 4
    for contrast in asked:
        space, _, rest = contrast.name.partition(": ")
        if rest.startswith("ceiling"):
            assert contrast.gates == ()
            continue
        cut = rest.partition(" ~ ")[0]
        arm = contrast.arms[0]
        assert design.arm(arm).text == cut and f"{space}: ceiling {cut} ~ words 4096" == contrast.needs
        assert contrast.beside == (f"learned ({arm})", "learned (words 4096, equal text)")
        twin, start = design.arm(f"{arm} again"), design.arm(f"{arm} untrained")
        assert twin.tune == arm and twin.sizes == start.sizes == design.arm(arm).sizes and start.trainer == "none"
    assert design.primary.name == "BPE 1024, equal compute - characters"
    quick = find("tokenizers").design(Ask(named=("a text", "0" * 64), quick=True))
    assert {c.unit for c in quick.contrasts} == {"bits per byte"}
