"""The catalogue over real models: coverage, shapes, selection, ties, circuits, state."""

from itertools import product

import pytest
import torch
from torch import nn

from qkv.errors import AddressError, ChangeError, RunFolderError
from qkv.models import EncoderDecoder, Layout, ModelConfig, MultiHeadAttention, SelfAttention, Sizes, build
from qkv.models.layout import RopeScaling
from qkv.models.matrices import Catalogue

VOCABULARY = {"the": 3, "a": 4, "[MASK]": 5, ",": 6}
SIZES = Sizes(d_vocab=11, d_model=16, n_layers=3, n_heads=4, n_kv_heads=2, n_ctx=8, d_mlp=20)


def make(kind="CausalLM", sizes=SIZES, **layout):
    model = build(ModelConfig(kind=kind, sizes=sizes, layout=Layout(start="normal", **layout)), seed=0)
    return Catalogue(model, VOCABULARY)


def picked(catalogue, selector):
    return [part.address for part in catalogue.select(selector)]


LAYOUTS = [
    dict(positions=positions, norm=norm, norm_place=place, qk_norm=extra, norm_e=extra and norm != "none",
         mlp=mlp, bias=bias, tied=tied)
    for (positions, norm, place, extra), (mlp, bias, tied) in zip(
        product(("none", "learned", "rotary"), ("none", "layer", "rms"), ("pre", "post"), (True, False)),
        list(product(("none", "gelu", "swiglu"), (True, False), (True, False))) * 3,
        strict=True,
    )
]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "-".join(str(v) for v in layout.values()))
@pytest.mark.parametrize("kind", ["CausalLM", "MaskedLM"])
def test_every_parameter_is_covered_exactly_once(kind, layout):
    catalogue = make(kind, **layout)
    covered = [id(entry.parameter) for entry in catalogue]
    assert sorted(covered) == sorted(id(parameter) for parameter in catalogue.model.parameters())
    assert len(set(catalogue.addresses)) == len(catalogue.addresses) == len(catalogue)
    assert picked(catalogue, "**") == catalogue.addresses
    assert sorted(a for group in catalogue.groups.values() for a in group) == sorted(catalogue.addresses)
    assert catalogue.is_tied == layout["tied"] == (catalogue.aliases == {"W_U": "W_E"})


def test_encoder_decoder_is_covered_exactly_once_with_ties_named_once():
    for tied in (True, False):
        catalogue = Catalogue(EncoderDecoder(SIZES, Layout(tied=tied, positions="learned")))
        assert [id(e.parameter) for e in catalogue] == [id(p) for p in catalogue.model.parameters()]
        assert catalogue.aliases == ({"dec.W_E": "enc.W_E", "W_U": "enc.W_E"} if tied else {})
    assert picked(catalogue, "dec.**.W_K") == [f"dec.L{i}.{c}W_K" for i in range(3) for c in ("", "cross.")]
    assert picked(catalogue, "dec.L1.cross.H3.W_[QK]") == ["dec.L1.cross.H3.W_Q", "dec.L1.cross.H3.W_K"]
    assert picked(catalogue, "enc.L*.W_O") == ["enc.L0.W_O", "enc.L1.W_O", "enc.L2.W_O"]


def test_attention_alone_and_models_without_memory_have_catalogues():
    assert Catalogue(SelfAttention(8)).addresses == ["W_Q", "W_K", "W_V", "W_O"]
    attention = Catalogue(MultiHeadAttention(8, 4, n_kv_heads=2))
    assert attention.view("H3.W_K").shape == (8, 2) and attention.view("W_K").shape == (2, 8, 2)
    config = ModelConfig(kind="CausalLM", sizes=SIZES, layout=Layout())
    assert Catalogue(build(config, 0, materialise=False)).view("L1.W_Q").shape == (4, 16, 4)


def test_order_is_from_the_embedding_to_the_unembedding():
    addresses = make("MaskedLM", positions="learned", norm_e=True, tied=False, bias=True).addresses
    assert addresses[:3] == ["W_E", "W_pos", "norm_e.gain"] and addresses[-3:] == ["norm_f.gain", "W_U", "b_U"]
    layers = [int(address[1]) for address in addresses if address.startswith("L")]
    assert layers == sorted(layers)


def test_views_are_the_fields_shapes_and_share_memory():
    catalogue = make(bias=True, tied=False, mlp="gelu")
    x = torch.randn(5, 16)
    attention = catalogue.model.blocks[1].attention
    expected = {
        "L1.W_Q": attention.W_Q.reshape(16, 4, 4).permute(1, 0, 2),
        "L1.W_K": attention.W_K.reshape(16, 2, 4).permute(1, 0, 2),
        "L1.W_O": attention.W_O.reshape(4, 4, 16),
        "L1.b_Q": attention.b_Q.reshape(4, 4),
        "L1.b_K": attention.b_K.reshape(2, 4),
        "L1.b_O": attention.b_O,
        "L1.H3.W_Q": attention.W_Q[:, 12:16],
        "L1.H3.W_V": attention.W_V[:, 4:8],
        "L1.KV1.W_V": attention.W_V[:, 4:8],
        "L1.H2.W_O": attention.W_O[8:12],
        "L1.H2.b_Q": attention.b_Q[8:12],
        "L1.W_in": catalogue.model.blocks[1].mlp.W_in,
        "W_E[the]": catalogue.model.embedding.W_E[3],
        "W_U[the]": catalogue.model.head.W_U[:, 3],
    }
    for address, values in expected.items():
        assert torch.equal(catalogue.view(address), values), address
        entry = catalogue.part(address).entry
        assert catalogue.view(address).untyped_storage().data_ptr() == entry.parameter.untyped_storage().data_ptr()
    heads = catalogue.view("L1.W_Q")
    torch.testing.assert_close(torch.einsum("pm,hmd->hpd", x, heads)[2], x @ catalogue.view("L1.H2.W_Q"))


def test_entries_know_layer_site_kind_and_shape():
    catalogue = make(qk_norm=True)
    entry = catalogue.entry("L2.W_K")
    assert (entry.layer, entry.site, entry.kind, entry.shape, entry.n_heads) == (2, "attn", "W_K", (16, 8), 2)
    assert catalogue.entry("L2.W_O").n_heads == 4 and catalogue.entry("L2.W_in").n_heads == 0
    sites = [catalogue.entry(a).site for a in ("W_E", "L0.W_gate", "L0.qnorm.gain", "norm_f.gain", "W_U")]
    assert sites == ["embed", "mlp", "norm", "norm", "head"]


def test_gradients_have_the_shape_of_views_and_are_none_where_absent():
    catalogue = make()
    assert catalogue.grad("L0.H1.W_Q") is None
    catalogue.model(torch.tensor([[1, 2, 3]])).square().sum().backward()
    assert torch.equal(catalogue.grad("L0.H1.W_Q"), catalogue.model.blocks[0].attention.W_Q.grad[:, 4:8])
    assert torch.equal(catalogue.grad("W_U"), catalogue.model.embedding.W_E.grad.T)


def test_writing_a_head_changes_its_slice_only_and_says_who_shares_it():
    catalogue = make()
    before = catalogue.view("L2.W_K").clone()
    catalogue.write("L2.H3.W_K", torch.ones(16, 4))
    assert torch.equal(catalogue.view("L2.W_K")[1], torch.ones(16, 4))
    assert torch.equal(catalogue.view("L2.W_K")[0], before[0])
    assert catalogue.part("L2.H3.W_K").shared_with == ("L2.H2.W_K",)
    assert catalogue.part("L2.KV1.W_K").shared_with == ("L2.H2.W_K", "L2.H3.W_K")
    assert catalogue.part("L2.H3.W_Q").shared_with == ()
    with pytest.raises(ChangeError, match=r"L2.H3.W_K is \[16, 4\].*\[4, 16\]"):
        catalogue.write("L2.H3.W_K", torch.ones(4, 16))


def test_tied_matrices_are_one_entry_with_two_names():
    catalogue = make(tied=True)
    assert catalogue.names("W_U") == catalogue.names("W_E") == ["W_E", "W_U"]
    alias = catalogue.entry("W_U")
    assert alias.tied_to == "W_E" and alias.shape == (16, 11) and alias.parameter is catalogue.entry("W_E").parameter
    assert torch.equal(catalogue.view("W_U"), catalogue.view("W_E").T)
    assert torch.equal(catalogue.view("W_U[3]"), catalogue.view("W_E[the]"))
    assert picked(catalogue, "head") == ["W_U"] and picked(catalogue, "W_[EU]") == ["W_E"]
    assert picked(catalogue, "W_E[the],W_U[3]") == ["W_E[the]"]
    assert "W_E" not in picked(catalogue, "**,-head")


def test_selectors_pick_what_the_language_says():
    catalogue = make(bias=False, tied=False)
    cases = {
        "L[0-1].W_[QK]": ["L0.W_Q", "L0.W_K", "L1.W_Q", "L1.W_K"],
        "L*.W_O": ["L0.W_O", "L1.W_O", "L2.W_O"],
        "L[0-99].W_V": ["L0.W_V", "L1.W_V", "L2.W_V"],
        "L1.attn": ["L1.W_Q", "L1.W_K", "L1.W_V", "L1.W_O"],
        "L1.H3.**": ["L1.H3.W_Q", "L1.H3.W_K", "L1.H3.W_V", "L1.H3.W_O"],
        "L1.H[0-3].W_K": ["L1.H0.W_K", "L1.H2.W_K"],
        "L1.KV*.W_K": ["L1.KV0.W_K", "L1.KV1.W_K"],
        "L1.W_Q,-L1.H[0-2].W_Q": ["L1.H3.W_Q"],
        "L1.W_K,-L1.H0.W_K": ["L1.KV1.W_K"],
        "W_U,W_E": ["W_E", "W_U"],
        "embed,head": ["W_E", "W_U"],
        "L0.H1.W_Q,L0.W_Q": ["L0.W_Q"],
        "L0.W_Q,L0.H1.W_Q": ["L0.W_Q"],
        "attn,-L[1-2].**": ["L0.W_Q", "L0.W_K", "L0.W_V", "L0.W_O"],
        "attn,-attn,L0.W_Q": ["L0.W_Q"],
        "L0.*.gain": ["L0.norm1.gain", "L0.norm2.gain"],
        "W_E[the],W_E[0],W_E[,]": ["W_E[0]", "W_E[the]", "W_E[,]"],
        "W_[EU][[MASK]]": ["W_E[[MASK]]", "W_U[[MASK]]"],
        "-attn,-norms,-head,-L*.W_gate": ["W_E", *(f"L{i}.W_{k}" for i in range(3) for k in ("in", "out"))],
    }
    for selector, expected in cases.items():
        assert picked(catalogue, selector) == expected, selector
    rows = picked(catalogue, "W_E,-W_E[the]")
    assert rows == [f"W_E[{i}]" for i in range(11) if i != 3]


@pytest.mark.parametrize(
    ("selector", "says"),
    [
        ("L9.W_Q", "did you mean 'L2.W_Q'"),
        ("W_Q", "did you mean L0.W_Q, L1.W_Q, L2.W_Q (or, where several are taken, '**.W_Q')?"),
        ("L0.W_X", "L0.W_"),
        ("L0.H4.W_Q", "L0.H3.W_Q"),
        ("L0.H0.W_in", "unknown address"),
        ("norm", "norms"),
        ("L0.x", "activation"),
        ("L0.H3.q", "activation"),
        ("L2.H3.QK", "circuit"),
        ("W_E[teh]", "did you mean 'the'"),
        ("W_E[11]", "rows 0 to 10"),
        ("L0.W_Q[3]", "no rows"),
        ("attn,-mlp", "takes nothing away"),
        ("attn,-attn", "takes every matrix away"),
        ("W_pos", "unknown address 'W_pos'"),
    ],
)
def test_a_selector_that_picks_nothing_says_so_with_the_nearest(selector, says):
    with pytest.raises(AddressError) as caught:
        make().select(selector)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("selector", "says"),
    [
        ("W_E[the]", "did you mean enc.W_E[the], dec.W_E[the] (or, where several are taken, '**.W_E[the]')?"),
        ("W_E[3]", "did you mean enc.W_E[3], dec.W_E[3] (or"),
        ("W_E[teh]", "did you mean 'the'"),
        ("W_Q[the]", "enc.L0.W_Q has no rows"),
        ("W_E", "did you mean enc.W_E, dec.W_E (or"),
    ],
)
def test_a_row_without_its_side_is_met_with_the_rows_that_there_are(selector, says):
    catalogue = Catalogue(EncoderDecoder(SIZES, Layout()), vocabulary={"the": 3, "cat": 4})
    with pytest.raises(AddressError) as caught:
        catalogue.select(selector)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "address", ["L0", "L9.W_Q", "L0.x", "L0.H0.QK", "L0.H0.W_in", "L0.H4.W_Q", "L0.KV2.W_K", "W_E[99]"]
)
def test_an_address_this_model_does_not_have_is_an_error(address):
    with pytest.raises(AddressError):
        make().view(address)


def test_tokens_need_a_vocabulary():
    with pytest.raises(AddressError, match="numbers only"):
        Catalogue(make().model).select("W_E[the]")


def test_circuits_are_the_products_of_their_heads():
    catalogue = make()
    qk, ov = catalogue.circuit("L2.H3.QK"), catalogue.circuit("L2.H3.OV")
    attention = catalogue.model.blocks[2].attention
    torch.testing.assert_close(qk.product(), attention.W_Q[:, 12:16] @ attention.W_K[:, 4:8].T)
    torch.testing.assert_close(ov.product(), attention.W_V[:, 4:8] @ attention.W_O[12:16])
    assert qk.left.shape == (16, 4) and qk.address == "L2.H3.QK" and not qk.left.requires_grad
    with pytest.raises(AddressError, match="not a circuit"):
        catalogue.circuit("L2.H3.W_Q")
    with pytest.raises(AddressError):
        catalogue.circuit("L2.H4.QK")


@pytest.mark.parametrize("distance", [0, 1, 5, -3])
def test_a_rotary_score_at_a_distance_is_the_turned_circuit(distance):
    catalogue = make()
    x = torch.randn(1, 8, 16)
    record = catalogue.model.blocks[0].attention.forward_recorded(x)[1]
    q, k = record["q"], record["k"]
    expected = x[0] @ catalogue.circuit("L0.H3.QK", distance=distance).product() @ x[0].T
    for query_pos in range(max(0, distance), min(8, 8 + distance)):
        score = q[0, 3, query_pos] @ k[0, 1, query_pos - distance]
        torch.testing.assert_close(score, expected[query_pos, query_pos - distance], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("distance", [0, 2])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_circuit_is_as_long_as_the_scores_where_positions_stretch_q_and_k(distance, share):
    """YaRN's attention factor is on q and on k, so on the score of turned coordinates squared."""
    scaling = RopeScaling(kind="yarn", factor=4.0, slow=0.5, fast=2.0, original_ctx=6, stretch=1.2)
    catalogue = make(rope_scaling=scaling, rope_share=share)
    x = torch.randn(1, 8, 16)
    scores = catalogue.model.blocks[0].attention.forward_recorded(x)[1]["scores"][0, 3]
    circuit = catalogue.circuit("L0.H3.QK", distance=distance)
    expected = x[0] @ circuit.product() @ x[0].T / 4**0.5
    for query_pos in range(distance, 8):
        key_pos = query_pos - distance
        torch.testing.assert_close(scores[query_pos, key_pos], expected[query_pos, key_pos], rtol=1e-4, atol=1e-6)


def test_a_distance_without_rotary_positions_is_an_error():
    for catalogue, address in ((make(positions="learned"), "L0.H0.QK"), (make(), "L0.H0.OV")):
        with pytest.raises(AddressError, match="does not depend on distance"):
            catalogue.circuit(address, distance=1)


def test_state_and_load_state_are_exact_and_strict():
    source, target = make(), make()
    with torch.no_grad():
        for entry in target:
            entry.parameter.add_(1)
    state = source.state()
    assert list(state) == source.addresses and all(v.is_contiguous() and not v.requires_grad for v in state.values())
    target.load_state(state)
    assert all(torch.equal(a.parameter, b.parameter) for a, b in zip(source, target, strict=True))
    short = {address: values for address, values in state.items() if address != "W_E"}
    for wrong, says in (
        (short, "missing: W_E"),
        (state | {"W_X": torch.ones(1)}, "not in the model: W_X"),
        (state | {"norm_f.gain": torch.ones(3)}, r"norm_f.gain is \[3\]; this model's is \[16\]"),
    ):
        with pytest.raises(RunFolderError, match=says):
            target.load_state(wrong)


def test_a_shared_matrix_is_an_alias_of_the_first():
    catalogue = make()
    catalogue.tie("L1.W_Q", catalogue.entry("L0.W_Q").parameter)
    shared = Catalogue(catalogue.model)
    assert shared.aliases == {"L1.W_Q": "L0.W_Q", "W_U": "W_E"} and len(shared) == len(catalogue) - 1
    assert sorted(id(e.parameter) for e in shared) == sorted(id(p) for p in catalogue.model.parameters())
    assert picked(shared, "L1.W_Q") == ["L1.W_Q"] and picked(shared, "L*.W_Q") == ["L0.W_Q", "L2.W_Q"]


def test_a_parameter_of_unknown_kind_is_an_error():
    module = nn.Module()
    module.W_X = nn.Parameter(torch.zeros(2))
    with pytest.raises(AddressError, match="kind of matrix 'W_X'"):
        Catalogue(module)
