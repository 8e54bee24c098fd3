"""A ViT is read and written as text models are: logits, hidden states and patterns of transformers, the same bytes."""

import dataclasses
import json

import pytest
import torch

import qkv
from qkv.cli import main
from qkv.errors import SourceError
from qkv.interop import exporting, read_checkpoint
from qkv.interop.mirror import mirror_of
from qkv.models import build
from qkv.models.matrices import Catalogue
from qkv.views.report.page_sections import Sections

NAMES = ("vit", "vit oblong")


def ours_of(folder, dtype):
    imported = read_checkpoint(folder, dtype=dtype)
    model = build(imported.config, 0).to(dtype).eval()
    Catalogue(model).load_state(imported.state)
    return model, imported


def pixels_for(model, n=2):
    patches = model.config.patches
    shape = n, patches.channels, patches.height, patches.width
    return torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("name", NAMES)
def test_float64_logits_hidden_states_and_patterns_are_theirs(name, theirs, tmp_path, monkeypatch):
    model = theirs.save_theirs(tmp_path / "them", name, torch.float64)
    (tmp_path / "them" / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": [0.4] * 3, "image_std": [0.3] * 3, "rescale_factor": 1 / 255})
    )
    ours, imported = ours_of(tmp_path / "them", torch.float64)
    assert imported.notes == [] and (imported.config.patches.mean, imported.config.patches.std) == (0.4, 0.3)
    assert imported.config.classes == (("ant", "bee", "cat") if name == "vit" else ("LABEL_0", "LABEL_1"))
    theirs.without_islands(model, monkeypatch)
    pixels = pixels_for(ours)
    with torch.no_grad():
        out = model((pixels - 0.4) / 0.3, output_hidden_states=True, output_attentions=True)
        logits, record = ours.forward_recorded(pixels)
        assert (ours(pixels) - out.logits).abs().max() < 1e-10
    assert (logits - out.logits).abs().max() < 1e-10
    for layer, pattern in enumerate(out.attentions):
        assert (record[f"L{layer}.pattern"] - pattern).abs().max() < 1e-10
        assert (record[f"L{layer}.resid_pre"] - out.hidden_states[layer]).abs().max() < 1e-10


@pytest.mark.parametrize("name", NAMES)
def test_export_import_export_gives_the_same_bytes_and_their_class_the_same_logits(name, theirs, tmp_path):
    import transformers

    model = theirs.save_theirs(tmp_path / "them", name)
    for source, target in (("them", "one"), ("one", "two")):
        read = read_checkpoint(tmp_path / source)
        fit = exporting.write_checkpoint(read.config, read.state, None, tmp_path / target, card="")
        assert fit.family.name == "vit"
    one, two = ({p.name: p.read_bytes() for p in (tmp_path / place).iterdir()} for place in ("one", "two"))
    assert one == two and "preprocessor_config.json" in one
    loaded, report = transformers.AutoModelForImageClassification.from_pretrained(
        tmp_path / "one", output_loading_info=True, attn_implementation="eager"
    )
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    ours, _ = ours_of(tmp_path / "one", torch.float32)
    pixels = pixels_for(ours).float()
    with torch.no_grad():
        assert (loaded.eval()(pixels).logits - model(pixels).logits).abs().max() < 1e-6
    assert loaded.config.id2label == model.config.id2label


def test_a_stride_that_is_the_patch_is_none(theirs, tmp_path):
    theirs.save_theirs(tmp_path / "them", "vit")
    config = read_checkpoint(tmp_path / "them").config
    patches = dataclasses.replace(config.patches, stride=config.patches.patch)
    fit = exporting.find_family(dataclasses.replace(config, patches=patches))
    assert fit.family is not None and fit.family.name == "vit"


def test_the_run_of_a_vit_is_shown_and_its_live_model_mirrored(theirs, tmp_path, capsys):
    live = theirs.save_theirs(tmp_path / "them", "vit")
    assert main(["import", str(tmp_path / "them"), "--out", str(tmp_path / "run")]) == 0
    assert "preprocessor_config.json" in capsys.readouterr().out
    run = qkv.load(tmp_path / "run")
    assert run.model(pixels_for(run.model).float()).shape == (2, 3)
    with Sections(tmp_path / "run") as rooms:
        axes = {item.address: item.axes for item in rooms.matrices().items}
    assert axes["W_E"] == ("values of a patch", "d_model") and axes["L0.W_in"] == ("d_model", "d_mlp")
    assert main(["show", str(tmp_path / "run")]) == 0 and main(["report", str(tmp_path / "run")]) == 0
    mirror = mirror_of(live)
    assert mirror.unnamed == []
    assert mirror.catalogue.view("L1.H2.W_V").equal(run.catalogue().view("L1.H2.W_V"))
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    assert "image-classification" in (tmp_path / "out" / "README.md").read_text()


def test_pixels_that_cannot_be_had_here_are_refused(theirs, tmp_path):
    theirs.save_theirs(tmp_path / "them", "vit")
    for settings, word in (
        ({"image_mean": [0.1, 0.2, 0.3]}, "image_mean"),
        ({"image_std": ["x"]}, "image_std"),
        ({"rescale_factor": 1.0}, "rescale_factor"),
        ({"rescale_factor": None}, "rescale_factor"),
    ):
        (tmp_path / "them" / "preprocessor_config.json").write_text(json.dumps(settings))
        with pytest.raises(SourceError, match=word):
            read_checkpoint(tmp_path / "them")
