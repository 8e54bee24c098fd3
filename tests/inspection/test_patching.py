"""Patching against hooks on transformers' own GPT-2, its nulls, other kinds of model, and what it refuses."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from qkv.errors import AddressError, UserError
from qkv.inspection.patching import Asked, asked, named, patch
from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.models.layout import Patches
from qkv.tasks import find_task
from qkv.tokenizers.tokenizer import fit_tokenizer

SIZES = Sizes(d_vocab=11, d_model=12, n_layers=2, n_heads=3, n_ctx=8)
FIRST, SECOND = torch.tensor([[3, 1, 4, 1, 5]]), torch.tensor([[3, 9, 4, 1, 6]])


def inputs(ids, position: int | None = 4):
    return Asked(ids, [str(int(i)) for i in ids[0]], position)


def made(kind: Any = "CausalLM", **more):
    layout = more.pop("layout", Layout(start="normal"))
    sizes = SIZES if layout.mixer == "attention" else dataclasses.replace(SIZES, n_heads=1)
    return build(ModelConfig(kind=kind, sizes=sizes, layout=layout, **more).resolved(), 3)


class Hooked:
    """A model of transformers, whose activations are seen and replaced by hooks on its modules."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def passed(self, ids, module=None, see=None, *, before=True):
        """Logits at the last position; what enters `module`, or where not `before`, leaves it, goes through `see`."""
        handle = None
        if module is not None:
            pre, post = (lambda _, a: (see(a[0]), *a[1:])), (lambda _, a, y: see(y))
            handle = module.register_forward_pre_hook(pre) if before else module.register_forward_hook(post)
        with torch.no_grad():
            logits = self.model(ids).logits[0, -1]
        if handle is not None:
            handle.remove()
        return logits

    def odds(self, ids, *hook, **how):
        """Of token 2 against token 7."""
        logits = self.passed(ids, *hook, **how)
        return float(logits[2] - logits[7])

    def odds_by_part(self, module, parts, *, before=True):
        """Of the first text, one part after another as it is on the second one."""
        kept: list[torch.Tensor] = []
        self.passed(SECOND, module, lambda x: kept.append(x.clone()) or x, before=before)
        for part in parts:

            def put(x, part=part):
                x = x.clone()
                x[part] = kept[0][part]
                return x

            yield self.odds(FIRST, module, put, before=before)


def test_every_share_is_that_of_hooks_on_the_model_of_transformers():
    transformers = pytest.importorskip("transformers")
    from qkv.interop.mirror import mirror_of

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=11, n_positions=8, n_embd=12, n_layer=2, n_head=3, initializer_range=0.5
    )
    theirs = transformers.GPT2LMHeadModel(config).eval()
    found = patch(mirror_of(theirs).model, inputs(FIRST), inputs(SECOND), answers=(2, 7))
    hooked = Hooked(theirs.double())
    own, other = hooked.odds(FIRST), hooked.odds(SECOND)
    assert found.odds == pytest.approx((own, other), abs=1e-6)
    assert found.heads is not None
    positions = [(slice(None), at) for at in range(5)]
    heads = [(..., slice(head * 4, head * 4 + 4)) for head in range(3)]
    for layer, block in enumerate(theirs.transformer.h):
        written = block.attn.c_proj
        for shares, module, parts, before in (
            (found.shares["stream"], block, positions, True),
            (found.shares["mixer"], written, positions, False),
            (found.shares["mlp"], block.mlp.c_proj, positions, False),
            (found.heads, written, heads, True),
        ):
            expected = [(own - odds) / (own - other) for odds in hooked.odds_by_part(module, parts, before=before)]
            for at, share in enumerate(expected):
                assert float(shares[layer, at]) == pytest.approx(share, abs=1e-6)


def test_equal_tokens_carry_nothing_at_first_and_the_whole_stream_carries_all():
    found = patch(made(), inputs(FIRST), inputs(SECOND))
    equal = FIRST[0] == SECOND[0]
    entering = found.shares["stream"].abs()
    assert (entering[0][equal] < 1e-12).all() and (entering[0][~equal] > 1e-3).all()
    assert entering[1, 0] < 1e-12, "nothing before the first token differs"
    whole = patch(made(), inputs(FIRST), inputs(SECOND), addresses=["L0.resid_pre", "L1.resid_pre", "L1.resid_post"])
    assert [float(shares[-1]) for shares in whole.one.values()] == pytest.approx([1, 1, 1], abs=1e-12)
    assert not whole.shares and whole.heads is None


def test_where_there_is_little_to_carry_it_is_said_and_nats_stay_what_they_are():
    """Two texts 0.09 nats apart gave shares of -4.49 and 2.60 without a word."""
    found = patch(made(), inputs(FIRST), inputs(SECOND))
    far, near = (dataclasses.replace(found, odds=odds) for odds in ((1.0, 0.5), (0.59, 0.5)))
    assert far.difference == 0.5 and far.caution == ""
    assert near.difference == pytest.approx(0.09)
    assert near.caution.startswith("There is nothing to carry: the two differ by only 0.09 nats, so effects are")
    assert dataclasses.replace(found, odds=(0.5, 1.5)).caution == ""  # answers may be named either way round
    model = made()
    a, b = found.answers
    with torch.no_grad():
        own, record = model.double().forward_recorded(FIRST)
        _, other = model.forward_recorded(SECOND)
        mixed = model.forward_with(FIRST, replace={"L1.resid_pre": other["L1.resid_pre"]})
    moved = float((own - mixed)[0, 4, a] - (own - mixed)[0, 4, b])
    whole = patch(model, inputs(FIRST), inputs(SECOND), addresses=["L1.resid_pre"]).one["L1.resid_pre"]
    assert float(whole[-1]) * found.difference == pytest.approx(moved, abs=1e-9), "a share times the difference"


def test_an_address_is_patched_by_position_and_all_at_once():
    found = patch(made(), inputs(FIRST), inputs(SECOND), addresses=["L1.H2.z", "L0.H1.pattern"])
    all_heads = patch(made(), inputs(FIRST), inputs(SECOND)).heads
    assert all_heads is not None
    assert found.one["L1.H2.z"][-1] == pytest.approx(float(all_heads[1, 2]), abs=1e-12)
    assert found.one["L0.H1.pattern"].shape == (6,)
    last = found.one["L1.H2.z"]
    assert (last[:4].abs() < 1e-12).all() and last[4] == pytest.approx(float(last[5])), (
        "in the last layer only what the asked position gets is read"
    )
    with pytest.raises(AddressError, match="L7"):
        patch(made(), inputs(FIRST), inputs(SECOND), addresses=["L7.z"])


def test_without_answers_they_are_the_likeliest_to_each_or_the_one_that_rises_most():
    model = made()
    found = patch(model, inputs(FIRST), inputs(SECOND))
    first, second = (model(ids)[0, -1].softmax(-1) for ids in (FIRST, SECOND))
    a, b = int(first.argmax()), int(second.argmax())
    if a == b:
        rise = second - first
        rise[a] = -1
        b = int(rise.argmax())
    assert found.answers == (a, b) and found.odds[0] > found.odds[1]


@pytest.mark.parametrize("layout", [{"mixer": "lstm", "positions": "none"}, {"mlp": "none"}, {"parallel": True}])
def test_other_layouts_have_the_parts_that_they_have(layout):
    found = patch(made(layout=Layout(start="normal", **layout)), inputs(FIRST), inputs(SECOND))
    assert ("mlp" in found.shares) == (layout.get("mlp") != "none")
    assert (found.heads is None) == ("mixer" in layout)
    assert found.shares["mixer"].shape == (2, 5)


def test_a_masked_model_is_asked_at_its_mask_and_classifiers_for_their_class(tmp_path):
    tokenizer = fit_tokenizer("word", ["the cat sees a dog"] * 3, specials=True)
    config = ModelConfig(kind="MaskedLM", sizes=SIZES, layout=Layout())
    one = asked(find_task("masked"), tokenizer, config, "the cat sees a [MASK]")
    assert one.position == 4 and one.tokens[-1] == "[MASK]"
    for text, n in (("the cat", "0 "), ("[MASK] a [MASK]", "2 ")):
        with pytest.raises(UserError, match=f"{n}.MASK"):
            asked(find_task("masked"), tokenizer, config, text)
    labelled = ModelConfig(kind="Classifier", sizes=SIZES, layout=Layout(), classes=("bad", "good"))
    assert asked(find_task("classify"), tokenizer, labelled, "the cat").position is None
    assert named(find_task("classify"), tokenizer, labelled, ["good", "bad"]) == (1, 0)
    assert named(find_task("masked"), tokenizer, config, ["cat", "dog"]) == tuple(
        tokenizer.readable[word] for word in ("cat", "dog")
    )
    with pytest.raises(UserError, match="unknown class 'goood'; did you mean 'good'"):
        named(find_task("classify"), tokenizer, labelled, ["goood", "bad"])
    with pytest.raises(UserError, match="two different answers"):
        named(find_task("classify"), tokenizer, labelled, ["good", "good"])
    model = made("Classifier", classes=("bad", "good"))
    found = patch(model, inputs(FIRST, None), inputs(SECOND, None), addresses=["L1.resid_post"])
    assert {*found.answers} == {0, 1} and float(found.one["L1.resid_post"][-1]) == pytest.approx(1, abs=1e-9)
    # the mean over positions is linear in what leaves the last layer, up to the final norm: none here
    flat = made("Classifier", classes=("bad", "good"), layout=Layout(start="normal", norm="none"))
    sums = patch(flat, inputs(FIRST, None), inputs(SECOND, None), addresses=["L1.resid_post"]).one["L1.resid_post"]
    assert float(sums[:-1].sum()) == pytest.approx(1, abs=1e-9)


def test_of_images_each_patch_is_a_position(tmp_path):
    patches = Patches(height=4, width=4, patch=2)
    sizes = Sizes(d_vocab=0, d_model=12, n_layers=2, n_heads=3, n_ctx=4)
    config = ModelConfig(
        kind="ImageClassifier",
        sizes=sizes,
        layout=Layout(start="normal", tied=False),
        classes=("a", "b"),
        patches=patches,
    ).resolved()
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (4, 4), dtype=np.uint8)
    for name in ("one", "two"):
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
        pixels[:2, :2] = 255 - pixels[:2, :2]
    one, two = (asked(find_task("image"), None, config, str(tmp_path / f"{name}.png")) for name in ("one", "two"))
    found = patch(build(config, 0), one, two)
    assert found.tokens == ["0,0", "0,1", "1,0", "1,1"] and found.position is None
    assert float(found.shares["stream"][0, 0]) == pytest.approx(1, abs=1e-12), "only this patch differs"
    assert (found.shares["stream"][0, 1:].abs() < 1e-12).all()


def test_inputs_that_cannot_be_compared_are_refused():
    model = made()
    for second, match in (
        (inputs(SECOND[:, :4], 3), r"5 and 4 tokens \('3\|1\|4\|1\|5' and"),
        (inputs(FIRST), "are the same"),
        (inputs(SECOND, 2), "different places"),
    ):
        with pytest.raises(UserError, match=match):
            patch(model, inputs(FIRST), second)
    with pytest.raises(UserError, match="tells the two answers apart by 0 nats"):
        patch(model, inputs(FIRST), inputs(SECOND), answers=(2, 2))
