"""Selectors over recorded names mean what the catalogue means by them."""

import pytest

from qkv.errors import AddressError
from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.models.matrices import Catalogue
from qkv.telemetry import select

WHOLE = [
    "**", "L*.W_Q", "L[0-1].W_[QK]", "**.W_Q", "attn", "L0.attn", "-attn", "**,-mlp", "W_[EU]", "norms", "L*.norm1.*",
    "attn,-L0.**", "L1.**", "embed,head", "L0.W_*", "*", "L[0,2].W_K", "L0.W_Q", "-norms,-embed", "mlp,L2.W_O",
]  # fmt: skip


@pytest.fixture(scope="module")
def catalogue():
    sizes = Sizes(d_vocab=11, d_model=8, n_layers=3, n_heads=4, n_ctx=8, n_kv_heads=2)
    layout = Layout(bias=True, positions="learned", tied=False, norm="layer", mlp="gelu")
    return Catalogue(build(ModelConfig(kind="CausalLM", sizes=sizes, layout=layout), seed=0))


@pytest.mark.parametrize("selector", WHOLE)
def test_a_selector_picks_the_matrices_that_the_catalogue_picks(catalogue, selector):
    heads = [f"L{layer}.H{head}.W_Q" for layer in range(3) for head in range(4)]
    sites = {entry.address: entry.site for entry in catalogue} | dict.fromkeys(heads, "attn")
    names = [*catalogue.addresses, *heads]
    assert select(selector, names, sites) == [part.address for part in catalogue.select(selector)]


def test_heads_are_picked_where_a_term_names_them():
    names = ["L0.W_Q", *[f"L0.H{h}.W_Q" for h in range(4)], "L0.KV0.W_K", "L0.H0.QK", "L0.H0"]
    assert select("L0.H[1-2].W_Q", names) == ["L0.H1.W_Q", "L0.H2.W_Q"]
    with pytest.raises(AddressError, match="matches nothing"):
        select("L0.H[²].W_Q", names)
    assert select("**.H*.W_Q", names) == [f"L0.H{h}.W_Q" for h in range(4)]
    assert select("L0.KV*.W_K", names) == ["L0.KV0.W_K"]
    assert select("**", names) == ["L0.W_Q"]
    assert select("L0.H0", names) == ["L0.H0"]
    assert select("L0.H0.QK,L0.W_Q", names) == ["L0.W_Q", "L0.H0.QK"]


@pytest.mark.parametrize("selector", ["", "a,,b", "-", "attn,", "L9.W_Q", "W_Q", "L*.nothing", "head", "-**"])
def test_what_names_nothing_is_an_error(selector):
    with pytest.raises(AddressError):
        select(selector, ["W_E", "L0.W_Q"], {"W_E": "embed", "L0.W_Q": "attn"})


@pytest.mark.parametrize("selector", ["W_U", "L1.W_Q", "L1.*", "**,-W_U", "W_[EU]", "L*.W_Q", "embed"])
def test_a_second_name_of_a_shared_matrix_picks_what_was_recorded_of_it(selector):
    sizes = Sizes(d_vocab=11, d_model=8, n_layers=2, n_heads=4, n_ctx=8)
    tied = Catalogue(build(ModelConfig(kind="CausalLM", sizes=sizes, layout=Layout(tied=True)), seed=0))
    tied.tie("L1.W_Q", tied.entry("L0.W_Q").parameter)
    tied = Catalogue(tied.model)
    sites = {entry.address: entry.site for entry in tied}
    expected = [part.entry.storage for part in tied.select(selector)]
    assert select(selector, tied.addresses, sites, tied.aliases) == expected


def test_an_error_shows_the_nearest_addresses():
    with pytest.raises(AddressError, match="L0.W_Q"):
        select("L0.W_q", ["W_E", "L0.W_Q"])


def test_where_only_heads_were_recorded_they_are_said_to_be():
    heads = ["L0.H0.QK", "L0.H1.QK"]
    with pytest.raises(AddressError, match=r"only heads were, which 'L\*\.H\*\.\*\*' names, or L0\.H0\.QK"):
        select("**", heads)
    assert select("L*.H*.**", heads) == heads
