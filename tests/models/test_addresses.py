"""The language of addresses and selectors, without a model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import AddressError
from qkv.models.addresses import Address, parse_address, parse_selector, split_outside

PARTS = {
    "W_E": Address("", None, False, None, "W_E"),
    "L0.W_Q": Address("", 0, False, None, "W_Q"),
    "L12.qnorm.gain": Address("", 12, False, None, "qnorm.gain"),
    "L2.H3.W_V": Address("", 2, False, ("H", 3), "W_V"),
    "L2.KV1.W_K": Address("", 2, False, ("KV", 1), "W_K"),
    "L2.H3.QK": Address("", 2, False, ("H", 3), "QK"),
    "enc.L0.W_Q": Address("enc", 0, False, None, "W_Q"),
    "dec.L1.cross.W_K": Address("dec", 1, True, None, "W_K"),
    "dec.L1.cross.H0.OV": Address("dec", 1, True, ("H", 0), "OV"),
    "L0.x": Address("", 0, False, None, "x"),
    "L0.H3.q": Address("", 0, False, ("H", 3), "q"),
    "L2.resid_post": Address("", 2, False, None, "resid_post"),
    "norm_f": Address("", None, False, None, "norm_f"),
    "norm_f.gain": Address("", None, False, None, "norm_f.gain"),
    "W_E[the]": Address("", None, False, None, "W_E", "the"),
    "W_U[42]": Address("", None, False, None, "W_U", 42),
    'W_E["42"]': Address("", None, False, None, "W_E", "42"),
    'W_E["]"]': Address("", None, False, None, "W_E", "]"),
    'W_E["\\n"]': Address("", None, False, None, "W_E", "\n"),
    'W_E[" "]': Address("", None, False, None, "W_E", " "),
    "W_E[[MASK]]": Address("", None, False, None, "W_E", "[MASK]"),
    "W_E[Ġthe]": Address("", None, False, None, "W_E", "Ġthe"),
    "W_E[a=b,c.d]": Address("", None, False, None, "W_E", "a=b,c.d"),
}


@pytest.mark.parametrize("text", PARTS)
def test_every_form_of_address_parses_to_its_parts_and_back(text):
    assert parse_address(text) == PARTS[text]
    assert str(PARTS[text]) == text


def test_a_space_may_be_typed_plainly_as_a_token():
    assert parse_address("W_E[ ]").token == " "


def test_the_kind_of_an_address_is_known_without_a_model():
    kinds = {
        text: parse_address(text).kind for text in ("L0.W_Q", "L0.H1.OV", "L0.H1.z", "L0.x", "norm_f", "norm_f.gain")
    }
    assert list(kinds.values()) == ["matrix", "circuit", "activation", "activation", "activation", "matrix"]


@pytest.mark.parametrize(
    "text",
    [
        "", ".", "W_E.", ".W_E", "L0", "L0.", "L0.H3", "H3.L0.W_Q", "L00.W_Q", "L-1.W_Q", "cross", "enc", "enc.dec.W_E",
        "W_E[", "W_E[]", "W_E]", "W_E[a]]", 'W_E["a]', 'W_E["a"b]', 'W_E[1"]', "W E", "L0..W_Q", "L0.W_Q\n", "9W",
        "L9999999999.W_Q", "QK", "L0.QK", "L0.KV1.QK", "x", "H1.q", "L0.H3.resid_post", "L0.embed", "L0.x[the]",
        "L0.cross", "L0.H3.KV1.W_K",
    ],
)  # fmt: skip
def test_what_is_no_address_is_an_error_that_repeats_it(text):
    with pytest.raises(AddressError) as caught:
        parse_address(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["L0", "L0.H3", "L0.KV1", "dec.L1.cross.H3"])
def test_a_layer_or_head_is_answered_by_a_matrix_of_it(text):
    with pytest.raises(AddressError, match=r"holds several matrices; add the name of one: \.W_Q, "):
        parse_address(text)


names = st.sampled_from(["W_E", "W_Q", "b_U", "norm1.gain", "qnorm.gain", "norm_cross.bias", "W_ih"])
heads = st.none() | st.tuples(st.sampled_from(["H", "KV"]), st.integers(0, 10**9 - 1))
tokens = st.none() | st.text(min_size=1) | st.integers(0, 10**9 - 1)
matrices = st.builds(
    Address,
    st.sampled_from(["", "enc", "dec"]),
    st.none() | st.integers(0, 10**9 - 1),
    st.booleans(),
    heads,
    names,
    tokens,
)
circuits = st.builds(
    lambda scope, layer, cross, head, name: Address(scope, layer, cross, ("H", head), name),
    st.sampled_from(["", "enc", "dec"]),
    st.integers(0, 99),
    st.booleans(),
    st.integers(0, 99),
    st.sampled_from(["QK", "OV"]),
)


@given(matrices | circuits)
def test_formatting_and_parsing_undo_each_other(address):
    assert parse_address(str(address)) == address


typed = st.text() | st.text('WEQKLH0123.*-,[]"()=@\\ ') | matrices.map(str)


@given(typed)
def test_any_text_is_an_address_or_an_address_error(text):
    try:
        assert parse_address(str(parse_address(text))) == parse_address(text)
    except AddressError as error:
        assert len(str(error)) < 400


@given(typed)
def test_any_text_is_a_selector_or_an_address_error(text):
    try:
        terms = parse_selector(text)
    except AddressError as error:
        assert len(str(error)) < 400
    else:
        assert all(isinstance(term.matches("L0.H1.W_Q", "attn"), bool) for term in terms)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("W_E", ["W_E"], ["W_U", "L0.W_E", "W_E2"]),
        ("L*.W_Q", ["L0.W_Q", "L11.W_Q"], ["enc.L0.W_Q", "W_Q", "L0.cross.W_Q"]),
        ("*", ["W_E", "b_U"], ["L0.W_Q", "norm_f.gain"]),
        ("L0.W_*", ["L0.W_Q", "L0.W_gate"], ["L0.b_Q", "L0.norm1.gain"]),
        ("L0.*", ["L0.W_Q"], ["L0.norm1.gain", "L0"]),
        ("L0.**", ["L0.W_Q", "L0.norm1.gain", "L0.cross.W_Q"], ["L1.W_Q", "W_E"]),
        ("**", ["W_E", "dec.L1.cross.W_K"], []),
        ("**.W_Q", ["W_Q", "L0.W_Q", "dec.L1.cross.W_Q"], ["L0.W_K"]),
        ("dec.**.W_K", ["dec.L0.W_K", "dec.L0.cross.W_K"], ["enc.L0.W_K"]),
        ("**.**.gain", ["norm_f.gain", "L0.norm1.gain"], ["L0.norm1.bias"]),
        ("L1.W_[QK]", ["L1.W_Q", "L1.W_K"], ["L1.W_V", "L1.W_QK"]),
        ("L1.[qk]norm.gain", ["L1.qnorm.gain", "L1.knorm.gain"], ["L1.norm1.gain"]),
        ("L1.norm[12].gain", ["L1.norm1.gain", "L1.norm2.gain"], ["L1.norm3.gain"]),
        ("L[0-11].W_Q", ["L0.W_Q", "L9.W_Q", "L11.W_Q"], ["L12.W_Q", "L.W_Q", "L01.W_Q"]),
        ("L[0,2-3].W_Q", ["L0.W_Q", "L2.W_Q", "L3.W_Q"], ["L1.W_Q"]),
        ("L0.H[0-3].W_Q", ["L0.H0.W_Q", "L0.H3.W_Q"], ["L0.H4.W_Q", "L0.W_Q"]),
        ("L0.KV[1].W_K", ["L0.KV1.W_K"], ["L0.KV0.W_K", "L0.H1.W_K"]),
        ("L0.H*.W_Q", ["L0.H0.W_Q", "L0.H12.W_Q"], ["L0.W_Q", "L0.KV0.W_Q"]),
    ],
)  # fmt: skip
def test_a_pattern_matches_exactly_what_the_language_says(pattern, yes, no):
    (term,) = parse_selector(pattern)
    assert [address for address in [*yes, *no] if term.matches(address, "attn")] == yes


def test_a_group_is_a_site_under_its_prefix():
    group, layers = parse_selector("attn,L[0-1].norms")
    assert group.matches("dec.L3.cross.W_Q", "attn") and not group.matches("L0.W_in", "mlp")
    assert layers.matches("L1.norm2.gain", "norm") and not layers.matches("L2.norm2.gain", "norm")


def test_brackets_are_a_set_inside_a_name_and_a_token_after_one():
    sets = parse_selector("W_[EU],L[0-1],L0.[qk]norm.gain,KV[0].W_K")
    rows = parse_selector('W_E[the],W_[EU][5],W_E["a,]b"],W_E[[MASK]],W_pos[3],-W_U[x.y]')
    assert [term.token for term in sets] == [None] * 4
    assert [term.token for term in rows] == ["the", 5, "a,]b", "[MASK]", 3, "x.y"]
    assert rows[1].matches("W_U", "head") and [term.subtract for term in rows] == [False] * 5 + [True]


@pytest.mark.parametrize(
    "text",
    [
        "", ",", "W_E,", "-", "W_E,-", "**W_Q", "L[3-1].W_Q", "L[].W_Q", "L[a].W_Q", "W_[].x", "W_[Q", "W_E[", "a b",
        "W_E]", "L0..W_Q", "L0.W_Q.", "é", "W_E[]", 'W_E["x]',
    ],
)  # fmt: skip
def test_a_malformed_selector_is_an_error(text):
    with pytest.raises(AddressError):
        parse_selector(text)


@pytest.mark.parametrize(
    ("text", "separator", "pieces"),
    [
        ("a,b", ",", ["a", "b"]),
        ("W_E[a,b],c", ",", ["W_E[a,b]", "c"]),
        ('W_E["],"],c', ",", ['W_E["],"]', "c"]),
        ('W_E["\\"],"],c', ",", ['W_E["\\"],"]', "c"]),
        ('W_E["\\\\"],c', ",", ['W_E["\\\\"]', "c"]),
        ("random(0.1,train=true),c", ",", ["random(0.1,train=true)", "c"]),
        ("W_E[(],c", ",", ["W_E[(]", "c"]),
        ("W_E[=]=zero(train=true)", "=", ["W_E[=]", "zero(train=true)"]),
        ("", ",", [""]),
    ],
)
def test_splitting_leaves_brackets_parentheses_and_quotes_whole(text, separator, pieces):
    assert split_outside(text, separator) == pieces
