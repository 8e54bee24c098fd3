"""What every model promises, held for image models: shapes, gradients, both paths, positions, and HF parity."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from qkv.errors import AddressError, ConfigError
from qkv.models import Catalogue, ImageClassifier, Layout, ModelConfig, Patches, Sizes, build

CLASSES = ("a", "b", "c")
LAYOUTS = {
    "learned, class token": Layout(
        positions="learned", norm="layer", mlp="gelu", bias=True, tied=False, pool="class", start="bert"
    ),
    "sinusoidal, mean": Layout(positions="sinusoidal", norm="layer", mlp="relu", tied=False, start="xavier"),
    "rotary, mean": Layout(positions="rotary", norm="rms", qk_norm=True, mlp="relu2", tied=False),
    "rotary, class token": Layout(positions="rotary", norm="rms", norm_e=True, tied=False, pool="class"),
    "bare": Layout(positions="none", norm="none", mlp="none", skip=False, tied=False, scale=False, start="identity"),
    "post": Layout(positions="learned", norm="layer", norm_place="post", mlp="gelu", tied=False, start="gpt2"),
}
CUTS = {
    "grey": Patches(height=8, width=8, patch=4, mean=0.3, std=0.4),
    "colour, oblong, padded": Patches(height=7, width=10, channels=3, patch=4),
    "overlapping": Patches(height=8, width=6, patch=4, stride=2),
}


def config_of(layout: str, cut: str = "grey") -> ModelConfig:
    n_heads = 1 if LAYOUTS[layout].start == "identity" else 2
    sizes = Sizes(d_vocab=0, d_model=16, n_layers=2, n_heads=n_heads, n_ctx=0)
    return ModelConfig(kind="ImageClassifier", sizes=sizes, layout=LAYOUTS[layout], patches=CUTS[cut], classes=CLASSES)


def randomised(config: ModelConfig) -> ImageClassifier:
    """In float64, with every parameter random, so that no zero hides a leak."""
    model = build(config, 0).double()
    assert isinstance(model, ImageClassifier)
    generator = torch.Generator().manual_seed(8)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


def images(cut: str = "grey", n: int = 3) -> torch.Tensor:
    patches = CUTS[cut]
    shape = n, patches.channels, patches.height, patches.width
    return torch.rand(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


CASES = [(layout, tuple(CUTS)[i % 3]) for i, layout in enumerate(LAYOUTS)] + [("rotary, mean", "overlapping")]


@pytest.fixture(params=CASES, ids="-".join)
def case(request) -> tuple[ImageClassifier, torch.Tensor]:
    layout, cut = request.param
    return randomised(config_of(layout, cut)), images(cut)


def test_logits_and_hidden_vectors_have_the_shapes_promised(case):
    model, pixels = case
    n_ctx = model.patches.n_patches + (model.layout.pool == "class")
    assert model.config.sizes.n_ctx == n_ctx
    assert model(pixels).shape == (3, len(CLASSES))
    assert model.hidden(pixels).shape == (3, n_ctx, 16)


def test_gradient_reaches_every_catalogued_matrix_and_each_is_covered_once(case):
    model, pixels = case
    F.cross_entropy(model(pixels), torch.tensor([0, 2, 1])).backward()
    catalogue = Catalogue(model)
    assert sorted(id(e.parameter) for e in catalogue) == sorted(id(p) for p in model.parameters())
    assert catalogue.addresses[0] == "W_E" and catalogue.addresses[-2:] == ["W_cls", "b_cls"] and not catalogue.aliases
    for entry in catalogue:
        grad = catalogue.grad(entry.address)
        assert grad is not None and grad.isfinite().all(), entry.address
        assert entry.kind == "b_K" or (grad != 0).any(), entry.address


def test_the_explicit_path_gives_the_logits_and_gradients_of_the_fast_one(case):
    model, pixels = case
    grads = []
    for forward in (model, lambda x: model.forward_recorded(x)[0]):
        model.zero_grad()
        logits = forward(pixels)
        F.cross_entropy(logits, torch.tensor([0, 2, 1])).backward()
        grads.append([logits.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
    for fast, explicit in zip(*grads, strict=True):
        torch.testing.assert_close(fast, explicit, rtol=0, atol=1e-11)


def test_recorded_activations_are_those_promised_and_can_be_replaced(case):
    model, pixels = case
    logits, record = model.forward_recorded(pixels)
    assert list(record) == model.activation_names()
    n_ctx = model.config.sizes.n_ctx
    assert record["embed"].shape == (3, n_ctx, 16)
    assert record["L1.pattern"].shape == (3, model.config.sizes.n_heads, n_ctx, n_ctx)
    for name in model.activation_names():
        torch.testing.assert_close(model.forward_with(pixels, {name: record[name]}), logits, rtol=0, atol=1e-11)
        other = record[name] * 1.5 + 0.1 * torch.rand_like(record[name])
        assert (model.forward_with(pixels, {name: other}) - logits).abs().max() > 1e-9, name


def test_an_image_is_independent_of_the_others_in_its_batch(case):
    model, pixels = case
    alone = torch.cat([model(pixels[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(model(pixels), alone, rtol=0, atol=1e-11)


def test_weights_survive_saving_and_loading_exactly(case):
    model, pixels = case
    other = build(model.config, 1).double()
    Catalogue(other).load_state({a: v.clone() for a, v in Catalogue(model).state().items()})
    assert torch.equal(other(pixels), model(pixels))


def test_the_same_seed_gives_the_same_model_and_the_meta_device_its_shapes():
    config = config_of("learned, class token")
    one, same, other = (dict(build(config, seed).state_dict()) for seed in (3, 3, 4))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)
    empty = build(config, 0, materialise=False)
    assert {n: p.shape for n, p in empty.named_parameters()} == {n: p.shape for n, p in one.items()}


@pytest.mark.parametrize("cut", CUTS)
def test_patches_are_what_a_plain_loop_over_the_grid_cuts_out(cut):
    model, pixels, patches = randomised(config_of("bare", cut)), images(cut), CUTS[cut]
    x = (pixels - patches.mean) / patches.std
    left, right, above, below = patches.padding
    assert abs(left - right) <= 1 and abs(above - below) <= 1
    x = F.pad(x, (left, right, above, below)).numpy()
    rows, columns = patches.grid
    expected = [
        x[
            :,
            :,
            r * patches.step : r * patches.step + patches.patch,
            c * patches.step : c * patches.step + patches.patch,
        ]
        for r in range(rows)
        for c in range(columns)
    ]
    expected = torch.stack([torch.from_numpy(patch.reshape(3, -1).copy()) for patch in expected], dim=1)
    assert torch.equal(model.embedding.cut(pixels), expected)
    torch.testing.assert_close(model.forward_recorded(pixels)[1]["embed"], expected @ Catalogue(model).view("W_E"))


def test_without_positions_the_order_of_patches_does_not_matter_and_with_them_it_does():
    for layout, same in (("bare", True), ("rotary, mean", False), ("sinusoidal, mean", False)):
        model, pixels = randomised(config_of(layout)), images()
        swapped = torch.cat((pixels[..., 4:], pixels[..., :4]), dim=-1)  # left and right patches change places
        apart = (model(pixels) - model(swapped)).abs().max()
        assert apart < 1e-11 if same else apart > 1e-6, layout


def test_rotary_scores_depend_on_rows_and_columns_between_patches_only():
    config = dataclasses.replace(config_of("rotary, mean"), patches=Patches(height=12, width=16, patch=4))
    model = randomised(config)
    same = torch.rand(1, 1, 4, 4, dtype=torch.float64).repeat(1, 1, 3, 4)  # every patch holds the same pixels
    scores = model.forward_recorded(same)[1]["L0.scores"][0, 0].reshape(3, 4, 3, 4)
    torch.testing.assert_close(scores[0, 0, 1, 2], scores[1, 1, 2, 3], rtol=0, atol=1e-11)
    torch.testing.assert_close(scores[2, 3, 0, 1], scores[2, 2, 0, 0], rtol=0, atol=1e-11)
    assert (scores[0, 0, 1, 2] - scores[0, 0, 2, 1]).abs() > 1e-6  # a row is not a column
    assert (scores[0, 0, 0, 3] - scores[0, 0, 1, 0]).abs() > 1e-6  # the end of a row is no neighbour of the next


def test_sinusoidal_rows_say_row_and_column_and_a_class_token_has_none():
    layout = dataclasses.replace(LAYOUTS["sinusoidal, mean"], pool="class")
    config = dataclasses.replace(config_of("sinusoidal, mean", "colour, oblong, padded"), layout=layout)
    model = build(config, 0).double()
    table = model.embedding.sines.tables(7, torch.float64, torch.device("cpu"))[0]
    assert table.shape == (7, 16) and not table[0].any()
    grid = table[1:].reshape(2, 3, 16)
    assert torch.equal(grid[:, 0, :8], grid[:, 2, :8]) and torch.equal(grid[0, :, 8:], grid[1, :, 8:])
    place = torch.tensor([1.0, 2.0], dtype=torch.float64)  # row 1, column 2
    sines = torch.stack((place.sin(), place.cos()), dim=1)
    torch.testing.assert_close(grid[1, 2].reshape(2, 8)[:, :2], sines, rtol=0, atol=1e-12)


def test_a_distance_along_a_line_has_no_meaning_in_two_dimensions():
    catalogue = Catalogue(build(config_of("rotary, mean"), 0))
    assert catalogue.circuit("L0.H0.QK").shape == (16, 16)
    with pytest.raises(AddressError, match="rows and columns"):
        catalogue.circuit("L0.H0.QK", distance=1)


@pytest.mark.parametrize(
    "change, sentence",
    [
        (dict(patches=None), "needs patches"),
        (dict(classes=("a",)), "1 classes; a classifier needs at least 2"),
        (dict(layout=Layout(positions="learned")), "tied has no meaning"),
        (dict(sizes=Sizes(d_vocab=5, d_model=16, n_layers=1, n_heads=2, n_ctx=0)), "d_vocab is 5"),
        (dict(sizes=Sizes(d_vocab=0, d_model=16, n_layers=1, n_heads=2, n_ctx=9)), "n_ctx is 9; 2 x 2 patches"),
        (dict(layout=Layout(tied=False), sizes=Sizes(d_vocab=0, d_model=18, n_layers=1, n_heads=3, n_ctx=0)), "d_head"),
        (dict(kind="CausalLM", classes=()), "reads no images"),
    ],
)
def test_what_cannot_be_built_is_said(change, sentence):
    with pytest.raises(ConfigError, match=sentence):
        dataclasses.replace(config_of("learned, class token"), **change).resolved()


@pytest.mark.parametrize(
    "change, sentence",
    [(dict(stride=5), "larger than patch"), (dict(std=0.0), "std is 0"), (dict(height=0), "height is 0")],
)
def test_a_cut_that_loses_pixels_or_divides_by_nothing_is_refused(change, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Patches(**(dict(height=8, width=8, patch=4) | change))


def test_images_of_another_shape_are_refused():
    with pytest.raises(ConfigError, match=r"\[batch, 1, 8, 8\]"):
        build(config_of("bare"), 0)(torch.zeros(2, 1, 8, 9))


VIT = {
    "norm1.gain": "layernorm_before.weight",
    "norm1.bias": "layernorm_before.bias",
    "norm2.gain": "layernorm_after.weight",
    "norm2.bias": "layernorm_after.bias",
    "attention.W_Q": "q_proj.weight",
    "attention.b_Q": "q_proj.bias",
    "attention.W_K": "k_proj.weight",
    "attention.b_K": "k_proj.bias",
    "attention.W_V": "v_proj.weight",
    "attention.b_V": "v_proj.bias",
    "attention.W_O": "o_proj.weight",
    "attention.b_O": "o_proj.bias",
    "mlp.W_in": "fc1.weight",
    "mlp.b_in": "fc1.bias",
    "mlp.W_out": "fc2.weight",
    "mlp.b_out": "fc2.bias",
}
"""Ours -> theirs: how the last two parts of a name of `transformers` read, whatever the modules around are called."""
OLDER_VIT = {
    "attention.attention.query": "q_proj",
    "attention.attention.key": "k_proj",
    "attention.attention.value": "v_proj",
    "attention.output.dense": "o_proj",
    "intermediate.dense": "fc1",
    "output.dense": "fc2",
}
"""The names of transformers 5.0 -> those of later versions; in this order, as one ends like another."""


def test_logits_and_gradients_equal_those_of_transformers_on_random_weights():
    transformers = pytest.importorskip("transformers", reason="needs the dev extra (transformers)")
    theirs = transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40, image_size=8,
            patch_size=4, num_channels=3, num_labels=3, layer_norm_eps=1e-6, attn_implementation="sdpa",
        )
    ).double().eval()  # fmt: skip
    generator = torch.Generator().manual_seed(5)
    for parameter in theirs.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3 + 0.05
    weights = dict(theirs.named_parameters())
    for old, new in OLDER_VIT.items():
        weights = {name.replace(old, new): value for name, value in weights.items()}
    sizes = Sizes(d_vocab=0, d_model=16, n_layers=2, n_heads=2, n_ctx=0, d_mlp=40)
    patches = Patches(height=8, width=8, channels=3, patch=4)
    layout = LAYOUTS["learned, class token"]
    ours = build(
        ModelConfig(kind="ImageClassifier", sizes=sizes, layout=layout, patches=patches, classes=CLASSES), 0
    ).double()
    table = {
        "embedding.W_E": "embeddings.patch_embeddings.projection.weight",
        "embedding.b_E": "embeddings.patch_embeddings.projection.bias",
        "embedding.W_token": "embeddings.cls_token",
        "embedding.W_pos": "embeddings.position_embeddings",
        "norm_f.gain": "vit.layernorm.weight",
        "norm_f.bias": "vit.layernorm.bias",
        "head.W_cls": "classifier.weight",
        "head.b_cls": "classifier.bias",
    }
    table |= {f"blocks.{i}.{name}": f".{i}.|.{other}" for i in range(2) for name, other in VIT.items()}
    used = {}
    for name, parameter in ours.named_parameters():
        first, _, last = table[name].rpartition("|")
        (their_name,) = (n for n in weights if first in n and n.endswith(last))
        used[name] = their_name
        value = weights[their_name].flatten(1) if name == "embedding.W_E" else weights[their_name].squeeze()
        matrix = name.rpartition(".")[2].startswith("W_") and "W_token" not in name and "W_pos" not in name
        parameter.data = (value.t() if matrix else value).reshape(parameter.shape).clone()
    assert sorted(used.values()) == sorted(weights)
    pixels, targets = torch.rand(4, 3, 8, 8, generator=generator, dtype=torch.float64), torch.tensor([0, 2, 1, 1])
    logits, expected = ours(pixels), theirs(pixel_values=pixels).logits
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)
    F.cross_entropy(logits, targets).backward()
    F.cross_entropy(expected, targets).backward()
    for name, parameter in ours.named_parameters():
        their_grad = weights[used[name]].grad
        their_grad = their_grad.flatten(1).t() if name == "embedding.W_E" else their_grad.squeeze()
        if name == "head.W_cls" or (name.startswith("blocks") and parameter.ndim == 2):
            their_grad = their_grad.t()
        torch.testing.assert_close(parameter.grad, their_grad.reshape(parameter.shape), rtol=0, atol=1e-10)
