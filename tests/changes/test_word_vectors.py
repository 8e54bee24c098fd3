"""`W_E=load(vectors.txt)`: rows of a file for the tokens it has, the others as they are when it acts."""

import pytest
import torch

from qkv.changes import plan_changes
from qkv.errors import ChangeError
from qkv.models import Catalogue, Layout, ModelConfig, Sizes, build

VOCABULARY = {"the": 3, "cat": 4, " Sat": 1, "zebra": 0, "[MASK]": 2}
FILE = "the 1 2 3 4\nsat 5 6 7 8\ncat -1 -2 -3 -4\nother 0 0 0 0\n"


def catalogue(tied=False) -> Catalogue:
    sizes = Sizes(d_vocab=5, d_model=4, n_layers=1, n_heads=1, n_ctx=4)
    layout = Layout(tied=tied, start="normal", positions="learned")
    return Catalogue(build(ModelConfig(kind="CausalLM", sizes=sizes, layout=layout), 0), VOCABULARY)


@pytest.fixture
def vectors(tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text(FILE)
    return path


def at_start(changes, matrices) -> Catalogue:
    return plan_changes(changes, matrices, 0, None).at_start()


@pytest.mark.parametrize("name", ["W_E", "W_U"])
def test_tokens_of_the_file_get_its_rows_and_the_others_keep_their_start(vectors, name):
    before = catalogue().view(name).clone()
    after = at_start([f"{name}=load({vectors})"], catalogue()).view(name)
    if name == "W_U":  # a column for each token
        before, after = before.t(), after.t()
    expected = torch.tensor([[1, 2, 3, 4], [-1, -2, -3, -4], [5, 6, 7, 8]], dtype=torch.float32)
    assert torch.equal(after[[3, 4, 1]], expected)  # " Sat" is found as "sat"
    assert torch.equal(after[[0, 2]], before[[0, 2]])


def test_a_token_is_found_by_any_of_its_names(vectors):
    matrices = catalogue()
    matrices.vocabulary = {"the": 3, " the": 3, "Ġthe": 3, "Ġsat": 1, "sat": 1}
    after = at_start([f"W_E=load({vectors})"], matrices).view("W_E")
    assert after[[3, 1]].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_tokens_that_the_file_lacks_keep_what_an_earlier_change_made_of_their_start(vectors):
    changed = at_start(["W_E=random(3,train=true)"], catalogue()).view("W_E").clone()
    after = at_start(["W_E=random(3,train=true)", f"W_E=load({vectors})"], catalogue()).view("W_E")
    assert after[3].tolist() == [1, 2, 3, 4]
    assert torch.equal(after[[0, 2]], changed[[0, 2]]) and not torch.equal(after[0], catalogue().view("W_E")[0])


@pytest.mark.parametrize("name", ["W_E", "W_U"])
def test_tokens_that_the_file_lacks_keep_what_training_made_of_them_at_a_later_step(vectors, name):
    matrices = catalogue()
    plan = plan_changes([f"{name}=load({vectors})@5.."], matrices, 0, None)
    plan.at_start()
    vectors.unlink()  # it was read before the training began
    trained = torch.arange(20.0).reshape(5, 4)
    with torch.no_grad():
        matrices.view(name).copy_(trained if name == "W_E" else trained.t())
    for step in range(6):
        plan.before_step(step)
        table = matrices.view(name) if name == "W_E" else matrices.view(name).t()
        assert torch.equal(table[[0, 2]], trained[[0, 2]])
        assert torch.equal(table, trained) == (step < 5)
    assert table[[3, 4, 1]].tolist() == [[1, 2, 3, 4], [-1, -2, -3, -4], [5, 6, 7, 8]]


def test_one_row_and_a_tied_table_take_them_too(vectors):
    row = at_start([f"W_E[cat]=load({vectors})"], catalogue())
    assert row.view("W_E[cat]").tolist() == [-1, -2, -3, -4]
    assert torch.equal(row.view("W_E[the]"), catalogue().view("W_E[the]"))
    assert at_start([f"W_U=load({vectors})"], catalogue(tied=True)).view("W_E[the]").tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "change, text, sentence",
    [
        ("W_E=load({})", "the 1 2 3\n", "have 3 numbers, rows of W_E have 4; give --set d_model=3"),
        ("W_E=load({})", "xyz 1 2 3 4\n", "none of the 5 tokens of W_E"),
        ("W_E[zebra]=load({})", FILE, r"vectors.txt has no row for W_E\[zebra\]"),
        ("W_E[zebra]=load({})@3..", FILE, r"vectors.txt has no row for W_E\[zebra\]"),
        ("W_pos=load({})", FILE, "W_pos is no table of tokens"),
        ("L0.W_Q=load({})", FILE, "L0.W_Q is no table of tokens"),
        ("W_E=load({})", "the 1 2 3 4\ncat 1\n", "line 2: expected a word and 4 numbers"),
    ],
)
def test_what_does_not_fit_is_one_sentence_that_names_both(vectors, change, text, sentence):
    vectors.write_text(text)
    with pytest.raises(ChangeError, match=sentence):
        at_start([change.format(vectors)], catalogue())
