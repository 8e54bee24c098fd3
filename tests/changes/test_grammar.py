"""The grammar of changes: every form, every mistake, and that text and change undo each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.changes import OPS, Change, freeze_changes, parse_change, parse_changes
from qkv.errors import AddressError, ChangeError

FORMS = {
    "W_E=freeze": Change("W_E", "freeze"),
    "L0.W_Q=identity": Change("L0.W_Q", "identity"),
    "L*.W_[QK]=random(0.02)": Change("L*.W_[QK]", "random", (0.02,)),
    "W_E=random": Change("W_E", "random"),
    "W_E=random(0.02,train=true)": Change("W_E", "random", (0.02,), train=True),
    "W_E=zero(train=true)": Change("W_E", "zero", train=True),
    "L1.W_Q=share(L0.W_Q)": Change("L1.W_Q", "share", ("L0.W_Q",)),
    "W_E=load(a/b.safetensors)": Change("W_E", "load", ("a/b.safetensors",)),
    "W_E=load(runs/a:W_E@100)": Change("W_E", "load", ("runs/a:W_E@100",)),
    "W_E=load(runs/a:W_E@100)@5..": Change("W_E", "load", ("runs/a:W_E@100",), start=5),
    "W_E=load(a (1),b=c.safetensors)": Change("W_E", "load", ("a (1),b=c.safetensors",)),
    "L0.W_O=scale(-0.5)": Change("L0.W_O", "scale", (-0.5,)),
    "L0.W_O=rank(3)@100..": Change("L0.W_O", "rank", (3,), start=100),
    "L*.W_[QV]=lora(8)": Change("L*.W_[QV]", "lora", ("8",)),
    "W_E=lora(8,alpha=16.0)": Change("W_E", "lora", ("8,alpha=16.0",)),
    "W_E[the]=mean": Change("W_E[the]", "mean"),
    "attn,-L0.**=freeze@0..100": Change("attn,-L0.**", "freeze", stop=100),
    "W_pos=reset": Change("W_pos", "reset"),
    "L0.W_Q=orthogonal@10..20": Change("L0.W_Q", "orthogonal", start=10, stop=20),
    'W_E["="]=freeze': Change('W_E["="]', "freeze"),
    "L0.attn=only": Change("L0.attn", "only"),
}


@pytest.mark.parametrize("text", FORMS)
def test_every_form_of_change_parses_to_its_parts_and_back(text):
    assert parse_change(text) == FORMS[text]
    assert parse_change(str(FORMS[text])) == FORMS[text]


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (" W_E = freeze ( ) @ 0 .. 9 ", "W_E=freeze@..9"),
        ("W_E=random( train = true , 0.5 )", "W_E=random(0.5,train=true)"),
        ("W_E=zero(train=false)", "W_E=zero"),
        ("W_E=freeze@0..", "W_E=freeze"),
        ("L0.W_O=scale(2)", "L0.W_O=scale(2.0)"),
        ("L0.W_O=lora( 8 , alpha = 16 )", "L0.W_O=lora(8,alpha=16.0)"),
        ("L0.W_O=lora(8,alpha=8)", "L0.W_O=lora(8)"),
    ],
)
def test_spaces_order_and_defaults_do_not_matter(text, same):
    assert parse_change(text) == parse_change(same)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("W_E", "expected SEL=op(args)@from..to"),
        ("", "expected SEL=op(args)@from..to"),
        ("W_E=", "is not an op"),
        ("W_E=freeze=1", "is not a change"),
        ("W_E=nonsense", "unknown op 'nonsense'"),
        ("W_E=frieze", "did you mean 'freeze'"),
        ("W_E=random(abc)", "random(abc): expected a number"),
        ("W_E=random(0)", "a number above 0"),
        ("W_E=random(nan)", "expected a number"),
        ("W_E=random(1,2)", "expected a number"),
        ("W_E=scale", "scale needs an argument; expected scale(c)"),
        ("W_E=scale(1)", "has no effect"),
        ("W_E=rank(0)", "a whole number of at least 1"),
        ("W_E=rank(1.5)", "a whole number of at least 1"),
        ("W_E=freeze(3)", "freeze takes no argument; given '3'"),
        ("W_E=share(L0.H1.W_Q)", "the address of a whole matrix"),
        ("W_E=share(attn,mlp)", "the address of a whole matrix"),
        ("W_E=load()", "load needs an argument; expected load(FILE or RUN:B@STEP)"),
        ("W_E=zero(train=yes)", "expected train=true or train=false"),
        ("W_E=scale(2,train=true)", "train=true has no effect"),
        ("W_E=freeze(train=true)", "train=true has no effect"),
        ("W_E=freeze@5", "is not a window"),
        ("W_E=freeze@..", "is not a window"),
        ("W_E=freeze@a..b", "is not a window"),
        ("W_E=freeze@-1..5", "is not a window"),
        ("W_E=freeze@5..5", "the window is empty"),
        ("W_E=freeze@9..5", "the window is empty"),
        ("W_E=scale(2)@5..9", "acts once, so ..9 has no effect"),
        ("W_E=zero(train=true)@5..9", "acts once, so ..9 has no effect"),
        ("L1.W_Q=share(L0.W_Q)@5..", "share holds from the first step"),
        ("L1.W_Q=lora(2)@..5", "lora holds from the first step"),
        ("L1.W_Q=lora", "lora needs an argument; expected lora(r,alpha=A)"),
        ("L1.W_Q=lora(2.5)", "a whole number of at least 1"),
        ("L1.W_Q=lora(2,alpha=0)", "a number above 0"),
        ("L1.W_Q=lora(2,beta=1)", "as in lora(8,alpha=16)"),
    ],
)
def test_a_mistake_is_one_error_that_says_what_is_expected(text, says):
    with pytest.raises(ChangeError) as caught:
        parse_change(text)
    assert says in str(caught.value)


def test_a_malformed_selector_is_an_address_error():
    with pytest.raises(AddressError):
        parse_change("L0..W_Q=freeze")


def test_a_comma_joins_changes_and_stays_inside_selectors():
    assert parse_changes("W_E,W_U=freeze,L0.W_Q=random(0.1,train=true)@5..,W_E[,]=zero") == [
        Change("W_E,W_U", "freeze"),
        Change("L0.W_Q", "random", (0.1,), start=5, train=True),
        Change("W_E[,]", "zero"),
    ]
    for text in ("W_E=freeze,", "W_E=freeze,W_U", ""):
        with pytest.raises(ChangeError):
            parse_changes(text)


def test_freeze_and_only_are_short_for_changes():
    assert freeze_changes(["W_E", "attn,-L0.**"], []) == [Change("W_E", "freeze"), Change("attn,-L0.**", "freeze")]
    assert freeze_changes([], ["L0.W_Q", "mlp"]) == [Change("L0.W_Q,mlp", "only")]
    assert freeze_changes([], []) == []
    for wrong in ("", "W_E=freeze", "a b"):
        with pytest.raises(AddressError):
            freeze_changes([wrong], [])
        with pytest.raises(AddressError):
            freeze_changes([], [wrong])


def arguments(op):
    values = {
        "std": st.floats(1e-6, 1e6),
        "c": st.floats(-1e6, 1e6).filter(lambda c: c != 1),
        "r": st.integers(1, 10**6),
        "r,alpha=A": st.integers(1, 10**6).map(str) | st.floats(1e-6, 1e6).map(lambda alpha: f"8,alpha={alpha!r}"),
        "B": st.sampled_from(["W_E", "dec.L3.cross.W_K"]),
        "FILE or RUN:B@STEP": st.sampled_from(["a.safetensors", "runs/x:L0.W_Q@10", "a (b),c.safetensors"]),
    }
    argument = OPS[op].argument
    if argument is None:
        return st.just(())
    given = values[argument.name].map(lambda value: (value,))
    return given if argument.required else given | st.just(())


@st.composite
def changes(draw):
    op = draw(st.sampled_from(sorted(OPS)))
    train = OPS[op].freezes == "unless train=true" and draw(st.booleans())
    holds = OPS[op].freezes != "no" and not train
    start = 0 if op in ("share", "lora") else draw(st.integers(0, 10**6))
    stop = draw(st.none() | st.integers(start + 1, start + 10**6)) if holds else None
    selector = draw(st.sampled_from(["W_E", "L*.W_[QK],-L0.**", 'W_E["=,@"]', "W_E[a=b]", "L[0-3].H[1].W_V", "attn"]))
    return Change(selector, op, draw(arguments(op)), start, stop, train)


@given(changes())
def test_formatting_and_parsing_undo_each_other(change):
    assert parse_change(str(change)) == change
    assert parse_changes(f"{change},{change}") == [change, change]


@given(st.text() | st.text('WEQ_L0.*,=()@-[]"freezscaltru1 ') | changes().map(lambda change: str(change)[:-1]))
def test_any_text_is_changes_or_an_error_of_ours(text):
    try:
        parse_changes(text)
    except (AddressError, ChangeError) as error:
        assert len(str(error)) < 600
