"""Stacks in use alone, activations by name, layouts and starts, and what each refuses."""

import dataclasses
import math

import pytest
import torch

import qkv.models
from qkv.errors import AddressError, ChangeError, ConfigError
from qkv.models import (
    START,
    CausalLM,
    Decoder,
    Encoder,
    EncoderDecoder,
    Layout,
    ModelConfig,
    Sizes,
    build,
    start_values,
)
from qkv.models.start import address_of

VECTORS = Sizes(d_vocab=0, d_model=8, n_layers=2, n_heads=2, n_ctx=6)
TOKENS = dataclasses.replace(VECTORS, d_vocab=9)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_every_exported_name_exists_and_the_list_is_sorted():
    names = qkv.models.__all__
    assert all(hasattr(qkv.models, name) for name in names)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("stack", [Encoder, Decoder])
def test_a_stack_takes_vectors_or_token_ids(stack):
    assert stack(VECTORS)(normal(2, 5, 8)).shape == (2, 5, 8)
    assert stack(TOKENS)(torch.zeros(2, 5, dtype=torch.int64)).shape == (2, 5, 8)
    with pytest.raises(ConfigError, match="without W_E"):
        stack(VECTORS)(torch.zeros(2, 5, dtype=torch.int64))


@pytest.mark.parametrize("positions", ["none", "sinusoidal", "learned", "rotary"])
def test_an_encoder_decoder_reads_its_source_and_no_future_of_its_target(positions):
    model = EncoderDecoder(TOKENS, Layout(positions=positions, start="xavier")).double()
    source = torch.randint(0, 9, (2, 6), generator=torch.Generator().manual_seed(1))
    target = torch.randint(0, 9, (2, 4), generator=torch.Generator().manual_seed(2))
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    out = model(source, target, mask)
    assert out.shape == (2, 4, 8) and model.unembed(out).shape == (2, 4, 9)
    hidden_changed = torch.where(mask, source, (source + 1) % 9)
    torch.testing.assert_close(model(hidden_changed, target, mask), out, rtol=0, atol=1e-12)
    assert (model((source + 1) % 9, target, mask) - out).abs().max() > 1e-6
    later = target.clone()
    later[:, 2:] = (later[:, 2:] + 1) % 9
    torch.testing.assert_close(model(source, later, mask)[:, :2], out[:, :2], rtol=0, atol=1e-12)


def test_a_decoder_with_a_cache_reads_its_context_once_and_continues_exactly():
    model = EncoderDecoder(TOKENS, Layout(start="xavier")).double()
    source = torch.randint(0, 9, (2, 6), generator=torch.Generator().manual_seed(1))
    target = torch.randint(0, 9, (2, 5), generator=torch.Generator().manual_seed(2))
    context = model.enc(source)
    whole, cache = model.dec(target, context), model.dec.new_cache(2)
    with torch.no_grad():
        pieces = [model.dec.hidden(piece, context=context, cache=cache) for piece in target.split([2, 1, 2], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, rtol=0, atol=1e-12)


def test_an_encoder_decoder_names_its_parameters_and_activations_by_side():
    model = EncoderDecoder(TOKENS, Layout(start="xavier", tied=False))
    addresses = [address_of(path) for path, _ in model.named_parameters()]
    assert {"enc.W_E", "enc.L0.W_Q", "dec.L1.cross.W_K", "dec.L0.norm_cross.gain", "W_U"} <= set(addresses)
    assert len(addresses) == len(set(addresses))
    record: dict[str, torch.Tensor] = {}
    ids = torch.zeros(1, 3, dtype=torch.int64)
    model.dec.hidden(ids, context=model.enc(ids), hook=lambda name, x: record.setdefault(name, x))
    assert list(record) == model.dec.activation_names()
    assert "dec.L1.cross.pattern" in record


def test_a_tied_encoder_decoder_has_one_table():
    model = EncoderDecoder(TOKENS, Layout(start="xavier"))
    assert model.dec.embedding.W_E is model.enc.embedding.W_E
    assert [path for path, _ in model.named_parameters() if "W_E" in path or "W_U" in path] == ["enc.embedding.W_E"]


def test_a_decoder_is_given_a_context_exactly_where_it_reads_one():
    """Without one cross-attention would read the decoder's own positions, those to come among them."""
    ids, context = torch.zeros(1, 3, dtype=torch.int64), normal(1, 2, 8)
    assert Decoder(TOKENS, cross=True)(ids, context).shape == (1, 3, 8)
    with pytest.raises(ConfigError, match="was given no context to read"):
        Decoder(TOKENS, cross=True)(ids)
    with pytest.raises(ConfigError, match="a stack that reads none"):
        Decoder(TOKENS)(ids, context)
    with pytest.raises(ConfigError, match="parallel leaves no place"):
        Decoder(TOKENS, Layout(parallel=True), cross=True)


@pytest.fixture
def shared() -> CausalLM:
    sizes = Sizes(d_vocab=9, d_model=8, n_layers=2, n_heads=4, n_kv_heads=2, n_ctx=6)
    model = build(ModelConfig(kind="CausalLM", sizes=sizes, layout=Layout(start="xavier")), 0)
    assert isinstance(model, CausalLM)
    return model


IDS = torch.tensor([[1, 2, 3, 4, 5]])


def test_replacing_one_heads_z_changes_what_that_head_writes_and_nothing_else(shared):
    logits, record = shared.forward_recorded(IDS)
    zero = torch.zeros(1, 5, 2)
    changed = record["L1.z"].clone()
    changed[:, 3] = 0
    torch.testing.assert_close(shared.forward_with(IDS, {"L1.H3.z": zero}), shared.forward_with(IDS, {"L1.z": changed}))
    assert (shared.forward_with(IDS, {"L1.H3.z": zero}) - logits).abs().max() > 1e-6
    torch.testing.assert_close(shared.forward_with(IDS, {"L1.H3.z": record["L1.z"][:, 3]}), logits)


def test_replacing_a_pattern_by_uniform_attention_averages_the_values(shared):
    uniform = torch.full((1, 5, 5), 0.2)
    seen: dict[str, torch.Tensor] = {}
    hook = qkv.models.activations.replacer({"L0.H1.pattern": uniform}, shared.activation_names(), shared.sizes)

    def both(name: str, tensor: torch.Tensor) -> torch.Tensor:
        seen[name] = hook(name, tensor)
        return seen[name]

    shared.hidden(IDS, hook=both)
    torch.testing.assert_close(seen["L0.z"][0, 1], seen["L0.v"][0, 0].mean(0).expand(5, 2))


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("L0.H9.z", "unknown activation 'L0.H9.z'; did you mean"),
        ("L9.z", "did you mean"),
        ("L0.zz", "did you mean 'L0.z'"),
        ("L0.H1.resid_pre", "unknown activation"),
        ("L0.H3.k", "L0.H3.k is L0.KV1.k"),
        ("L0.KV1.z", "unknown activation"),
        ("", "unknown activation"),
    ],
)
def test_replacing_an_unknown_activation_names_the_nearest(shared, address, message):
    with pytest.raises(AddressError, match=message.replace(".", r"\.")):
        shared.forward_with(IDS, {address: torch.zeros(1)})


def test_a_replacement_of_the_wrong_shape_says_both_shapes(shared):
    with pytest.raises(ChangeError, match=r"L0.H1.z has shape \(1, 5, 2\) here; the replacement has \(1, 4, 2\)"):
        shared.forward_with(IDS, {"L0.H1.z": torch.zeros(1, 4, 2)})


def test_a_text_longer_than_n_ctx_is_refused_with_both_numbers(shared):
    with pytest.raises(ConfigError, match="7 positions was given; this model's n_ctx is 6"):
        shared(torch.zeros(1, 7, dtype=torch.int64))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(d_model=0), "d_model is 0"),
        (dict(n_heads=3), "does not divide into n_heads 3"),
        (dict(n_heads=4, n_kv_heads=3), "not a multiple of n_kv_heads 3"),
        (dict(d_head=3), "d_head must be even; it is 3"),
        (dict(d_vocab=0), "needs at least 1 token type"),
    ],
)
def test_sizes_that_cannot_be_built_are_refused_in_one_sentence(change, message):
    with pytest.raises(ConfigError, match=message):
        build(ModelConfig(kind="CausalLM", sizes=dataclasses.replace(TOKENS, **change)), 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(positions="rotry"), "unknown value for positions 'rotry'; did you mean 'rotary'"),
        (dict(mlp="gelu2"), "did you mean"),
        (dict(start="bort"), "did you mean 'bert'"),
        (dict(dropout=1.0), "expected 0 <= dropout < 1"),
        (dict(rope_base=0.5), "rope_base is 0.5"),
        (dict(norm_eps=-1.0), "norm_eps"),
        (dict(norm_eps=float("nan")), "norm_eps is nan"),
        (dict(rope_base=float("inf")), "rope_base is inf"),
    ],
)
def test_a_layout_out_of_range_is_refused_at_construction(change, message):
    with pytest.raises(ConfigError, match=message):
        Layout(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(norm="none", norm_e=True), "norm_e has no effect"),
        (dict(start="identity"), "needs one head as wide as the model"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused_when_built(change, message):
    with pytest.raises(ConfigError, match=message):
        build(ModelConfig(kind="CausalLM", sizes=TOKENS, layout=Layout(**change)), 0)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("Classifier", dict(pool="class"), "pool = class has no effect on a Classifier; set it to mean"),
        ("EncoderDecoderLM", dict(pool="class"), "pool = class has no effect"),
        ("CausalClassifier", dict(head_transform=True, mlp="relu"), "head_transform has no effect on a CausalClass"),
        ("EncoderDecoderLM", dict(head_transform=True), "head_transform has no effect on a EncoderDecoderLM; set it"),
        ("EncoderDecoderLM", dict(parallel=True), "parallel leaves no place .* where a decoder reads the encoder"),
    ],
)
def test_a_setting_without_an_effect_on_this_kind_of_model_is_refused(kind, change, message):
    classes = ("a", "b") if kind.endswith("Classifier") else ()
    with pytest.raises(ConfigError, match=message):
        ModelConfig(kind=kind, sizes=TOKENS, layout=Layout(**change), classes=classes).resolved()


def test_an_unknown_kind_of_model_is_refused():
    with pytest.raises(ConfigError, match="did you mean 'CausalLM'"):
        ModelConfig(kind="CasualLM", sizes=TOKENS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "address"),
    [
        ("embedding.W_E", "W_E"),
        ("embedding.norm_e.gain", "norm_e.gain"),
        ("blocks.0.attention.W_Q", "L0.W_Q"),
        ("blocks.11.attention.qnorm.gain", "L11.qnorm.gain"),
        ("blocks.0.norm1.bias", "L0.norm1.bias"),
        ("blocks.3.mlp.W_in", "L3.W_in"),
        ("head.W_U", "W_U"),
        ("enc.blocks.0.attention.W_Q", "enc.L0.W_Q"),
        ("dec.blocks.1.cross.W_K", "dec.L1.cross.W_K"),
    ],
)
def test_module_paths_become_addresses_by_one_rule(path, address):
    assert address_of(path) == address


def test_a_start_depends_on_seed_and_address_and_on_nothing_drawn_before():
    def draw(address: str, seed: int) -> torch.Tensor:
        return start_values("gpt2", address, "W_Q", (8, 8), 8, 2, seed)

    first = draw("L0.W_Q", 0)
    draw("L1.W_Q", 0)
    assert torch.equal(draw("L0.W_Q", 0), first)
    assert not torch.equal(draw("L1.W_Q", 0), first)
    assert not torch.equal(draw("L0.W_Q", 1), first)


def test_models_that_share_an_address_share_its_start():
    deep = build(ModelConfig(kind="CausalLM", sizes=dataclasses.replace(TOKENS, n_layers=3)), 0)
    masked = build(ModelConfig(kind="MaskedLM", sizes=TOKENS, layout=Layout(mlp="none", norm="layer")), 0)
    assert torch.equal(deep.blocks[1].attention.W_Q, masked.blocks[1].attention.W_Q)


@pytest.mark.parametrize("name", START)
def test_every_start_has_the_spread_its_source_says(name):
    def spread(kind: str, shape: tuple[int, ...] = (256, 1024)) -> float:
        return start_values(name, f"L0.{kind}", kind, shape, shape[0], 8, 0).std().item()

    expected = {
        "gpt2": {"W_Q": 0.02, "W_E": 0.02, "W_O": 0.005, "W_out": 0.005},
        "bert": {"W_Q": 0.02 * 0.8796, "W_E": 0.02 * 0.8796},
        "normal": {"W_Q": 0.02, "W_O": 0.02, "W_U": 0.02},
        "xavier": {"W_Q": math.sqrt(2 / 1280), "W_E": 1 / 32},
        "zero_out": {"W_Q": 1 / 16, "W_in": 1 / 16, "W_O": 0.0, "W_out": 0.0, "W_U": 0.0},
        "identity": {"W_in": 1 / 16, "W_E": 1.0},
        "recurrent": {"W_ih": 1 / 16, "W_hh": 1 / 16, "W_ih_back": 1 / 16, "W_E": 0.5, "W_U": 1 / 16},
    }
    for kind, std in expected[name].items():
        assert spread(kind) == pytest.approx(std, rel=0.01), kind
    for kind in ("gain", "bias", "b_Q"):
        values = start_values(name, f"L0.{kind}", kind, (16,), 16, 8, 0)
        assert (values == (1.0 if kind == "gain" else 0.0)).all()
    assert start_values(name, "L0.b_ih", "b_ih", (8,), 8, 1, 0).tolist() == [0, 0, 1, 1, 0, 0, 0, 0]


def test_every_start_knows_every_kind_of_matrix():
    kinds = {frozenset(table) for table in START.values()}
    assert len(kinds) == 1


def test_unknown_starts_and_kinds_are_refused():
    with pytest.raises(ConfigError, match="did you mean 'gpt2'"):
        start_values("gpt3", "W_E", "W_E", (2, 2), 2, 1, 0)
    with pytest.raises(ConfigError, match="did you mean"):
        start_values("gpt2", "L0.W_X", "W_X", (2, 2), 2, 1, 0)
