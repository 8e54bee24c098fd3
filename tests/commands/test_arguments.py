"""Option values: kinds, and how several are split."""

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.commands.arguments import at_least_zero, one_of, positive, settings, share, split_changes, split_words, whole
from qkv.errors import ConfigError


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [(whole(), "3", 3), (whole(0), "0", 0), (positive, "1e-3", 1e-3), (share, "1", 1.0), (at_least_zero, "0", 0.0)],
)
def test_a_good_value_is_converted(kind, text, value):
    assert kind(text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [(whole(), "0"), (whole(), "-4"), (whole(), "2.5"), (whole(), "many"), (positive, "0"), (positive, "nan"),
     (positive, "inf"), (share, "1.1"), (at_least_zero, "-1"), (one_of("best", "last"), "bets")],
)  # fmt: skip
def test_a_wrong_value_is_repeated_in_the_message(kind, text):
    with pytest.raises(argparse.ArgumentTypeError, match=text):
        kind(text)


def test_settings_repeat_and_join_and_keep_commas_of_values():
    assert settings(["d_model=64", "model.n_layers=2,betas=0.9,0.95,seed=3"]) == {
        "d_model": "64",
        "model.n_layers": "2",
        "betas": "0.9,0.95",
        "seed": "3",
    }


@pytest.mark.parametrize("mark", ["\n\n", "\n---\n", " "])
def test_white_space_in_a_mark_that_ends_documents_stays(mark):
    given = settings([f"data.document_end={mark}", "d_model = 64"])
    assert given == {"data.document_end": mark, "d_model": "64"}


@pytest.mark.parametrize("wrong", ["d_model", "=3", ""])
def test_a_setting_without_its_parts_says_what_set_takes(wrong):
    with pytest.raises(ConfigError, match="path=value"):
        settings([wrong])


@pytest.mark.parametrize(
    ("typed", "changes"),
    [
        (["W_E=freeze"], ["W_E=freeze"]),
        (["W_E,W_pos=freeze,L0.W_Q=random(0.02,train=true)@0..100"],
         ["W_E,W_pos=freeze", "L0.W_Q=random(0.02,train=true)@0..100"]),
        (["attn,-L0.W_[QK]=zero"], ["attn,-L0.W_[QK]=zero"]),
        (["W_E[a,b]=freeze", "L0.W_V=share(L0.W_K)"], ["W_E[a,b]=freeze", "L0.W_V=share(L0.W_K)"]),
        (["W_E"], ["W_E"]),
        (['W_E["a=)b,c"]=freeze,W_U=zero'], ['W_E["a=)b,c"]=freeze', "W_U=zero"]),
    ],
)  # fmt: skip
def test_changes_split_outside_brackets_and_selectors_join(typed, changes):
    assert split_changes(typed) == changes


@given(st.lists(st.text("abc,=()[]", min_size=1), max_size=4))
def test_splitting_changes_loses_no_character(texts):
    assert ",".join(split_changes(texts)).replace(",", "") == "".join(texts).replace(",", "")


def test_words_split_at_commas_and_repeat():
    assert split_words(["a,b", "c"]) == ["a", "b", "c"]


def test_a_whole_number_may_have_a_most():
    assert whole(0, 65535)("65535") == 65535
    with pytest.raises(argparse.ArgumentTypeError, match="'65536' is not a whole number from 0 to 65535"):
        whole(0, 65535)("65536")
