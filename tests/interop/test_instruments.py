"""Every family through every instrument: catalogue, measures, activations, attention, heads, comparison, every room."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from qkv import api
from qkv.cli import main
from qkv.instruments.registry import SPECTRAL
from qkv.interop import FAMILIES
from qkv.models.matrices import Catalogue
from qkv.views.host import Host
from qkv.views.live.server import LIVE_SECTIONS, Page
from qkv.views.report.packed import wire
from qkv.views.report.page_sections import Sections

NAMES = "gpt2 llama mistral qwen2 qwen3 bert roberta distilbert vit marian".split()
CHECKPOINTS = {family: family for family in NAMES} | {"gpt_neox": "neox"}
TEXT = "the cat sat on a mat"


@pytest.fixture(scope="module", params=CHECKPOINTS)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def place(family, theirs, tmp_path_factory):
    """A folder of theirs with a tokenizer, and another in which one matrix of layer 1 is twice as large."""
    place = tmp_path_factory.mktemp(family)
    for name in ("hf", "other"):
        theirs.save_theirs(place / name, CHECKPOINTS[family])
        if FAMILIES[family].kind in ("CausalLM", "MaskedLM"):
            masked = FAMILIES[family].kind == "MaskedLM"
            theirs.save_tokenizer(place / name, "wordpiece" if masked else "word", 57, specials=masked)
    imported = api.import_checkpoint(place / "hf", place / "run")
    address = next(a for a in imported.catalogue().addresses if a.endswith("L1.W_out"))
    tensors = load_file(place / "run" / "model.safetensors")
    name = _stored_name(place / "other", tensors[address])
    weights = load_file(place / "other" / "model.safetensors")
    save_file(weights | {name: 2 * weights[name]}, place / "other" / "model.safetensors", metadata={"format": "pt"})
    api.import_checkpoint(place / "other", place / "changed")
    return place, address


def _stored_name(folder, values):
    """The tensor of theirs that holds these values, as they are or transposed."""
    for name, tensor in load_file(folder / "model.safetensors").items():
        forms = (tensor, tensor.t()) if tensor.ndim == 2 else (tensor,)
        if any(torch.equal(form, values) for form in forms):
            return name
    raise AssertionError("no tensor holds these values")


@pytest.fixture(scope="module")
def run(place):
    return api.load(place[0] / "run")


def shown(capsys, *words):
    capsys.readouterr()
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_catalogue_covers_every_parameter_once(run):
    catalogue = Catalogue(run.model)
    held = [id(catalogue.entry(address).parameter) for address in catalogue.addresses]
    assert sorted(held) == sorted({id(p) for p in run.model.parameters()})


def test_measures_of_every_matrix_are_taken_and_right(run, capsys):
    table = shown(capsys, "show", run.path)["matrices"]
    catalogue = Catalogue(run.model)
    for address in catalogue.addresses:
        values = catalogue.entry(address).parameter.detach()
        assert table[address]["norm"] == pytest.approx(float(values.norm()), rel=1e-5), address
    spectra = SPECTRAL
    assert spectra
    address = next(a for a in catalogue.addresses if a.endswith("L0.W_Q"))
    for name in ("stable_rank", "largest"):
        if name in spectra:
            assert len(run.history(address, name)[address].value)
    singular = torch.linalg.svdvals(catalogue.entry(address).parameter.detach().double())
    found = run.history(address, "stable_rank")[address].value
    assert found[0] == pytest.approx(float((singular**2).sum() / singular[0] ** 2), rel=1e-4)


def test_every_matrix_and_head_and_circuit_is_shown(run, capsys):
    layer = next(a for a in Catalogue(run.model).addresses if a.endswith("L0.W_Q")).removesuffix("W_Q")
    for address in (f"{layer}W_Q", f"{layer}H1.W_V", f"{layer}H1.OV", f"{layer}norm1.gain"):
        assert shown(capsys, "show", run.path, address)
    head = run.matrix(f"{layer}H1.W_V").double() @ run.matrix(f"{layer}H1.W_O").double()
    expected = torch.linalg.svdvals(head)[: run.config.model.sizes.d_head]
    torch.testing.assert_close(run.matrix(f"{layer}H1.OV").singular_values().double(), expected, rtol=1e-4, atol=1e-5)


def test_every_activation_is_recorded_and_can_be_replaced(run):
    sizes, generator = run.config.model.sizes, torch.Generator().manual_seed(0)
    if run.config.model.patches is not None:
        cut = run.config.model.patches
        asked = (torch.rand(1, cut.channels, cut.height, cut.width, generator=generator),)
    else:
        asked = (torch.randint(1, 50, (1, 7), generator=generator),)
        asked *= 2 if run.config.model.kind == "EncoderDecoderLM" else 1
    with torch.no_grad():
        out, record = run.model.forward_recorded(*asked)
        assert set(record) == set(run.model.activation_names())
        patterns = [name for name in record if name.endswith(".pattern")]
        assert len(patterns) == sizes.n_layers * (3 if len(asked) == 2 else 1)
        for name in patterns:
            torch.testing.assert_close(record[name].sum(-1), torch.ones(record[name].shape[:-1]))
        last = patterns[-1].removesuffix(".pattern") + ".z"
        torch.testing.assert_close(run.model.forward_with(*asked, {last: record[last]}), out, rtol=1e-5, atol=1e-5)
        assert not torch.equal(run.model.forward_with(*asked, {last: torch.zeros_like(record[last])}), out)


def test_attention_of_a_text_is_the_models(run, tmp_path, capsys):
    if run.tokenizer is None:
        pytest.skip("this family reads no text, or came without a tokenizer")
    view = run.attention(TEXT)
    view.save(tmp_path / "a.html"), view.save(tmp_path / "a.svg")
    assert "sat" in (tmp_path / "a.html").read_text() and "<svg" in (tmp_path / "a.svg").read_text()
    found = shown(capsys, "show", run.path, "L1.H1.pattern", "--text", TEXT)
    ids = torch.from_numpy(run.tokenizer.encode_whole(TEXT))[None]
    with torch.no_grad():
        _, record = run.model.forward_recorded(ids)
    np.testing.assert_allclose(found["values"], record["L1.pattern"][0, 1].numpy(), atol=1e-6)


def test_a_comparison_finds_the_matrix_that_differs_and_no_other(place, run, capsys):
    folder, address = place
    found = shown(capsys, "compare", run.path, folder / "changed")
    differing = {row["address"] for row in found["matrices"] if row["words"] != "identical"}
    assert differing == {address}


def test_the_report_and_every_room_of_the_page_open(run, tmp_path):
    out = run.report(tmp_path / "report.html", texts=[TEXT] if run.tokenizer is not None else ())
    assert "W_E" in out.read_text(encoding="utf-8")
    page = Page(run.path)
    assert page.payload().matrices is not None and page.payload().grid is not None
    with Sections(run.path) as rooms:
        assert rooms.report(Host(kind="page", can=())).run is not None


def test_every_question_of_the_page_is_answered(run):
    page = Page(run.path)
    if run.tokenizer is None:
        assert page.desk is None or set(page.desk.can) == {"matrix"}
        pytest.skip("this family reads no text, or came without a tokenizer")
    address = next(a for a in Catalogue(run.model).addresses if a.endswith("L0.W_Q"))
    asked = {"text": TEXT, "address": address, "position": 2, "layer": 1, "head": 1}
    assert {"attention", "matrix", "forward", "backward", "near", "context"} <= set(page.desk.can)
    mask = " [MASK]" if run.config.model.kind == "MaskedLM" else ""
    others = {"near": {"text": "cat"}, "patch": {"text": f"the cat{mask}", "other": f"a cat{mask}"}}
    for name in page.desk.can:
        answer = page.desk.answer(name, asked | others.get(name, {}))
        assert wire(answer), name


def test_every_room_of_the_live_page_is_there_for_an_imported_model(run):
    rooms = Page(run.path).sections(LIVE_SECTIONS)
    assert (
        set(rooms) == {"wait", "kept", "as_of", *LIVE_SECTIONS}
        and rooms["matrices"] is not None
        and rooms["map"] is not None
    )
