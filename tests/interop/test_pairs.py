"""Encoder-decoders of transformers: the same logits, states, patterns and greedy translations; there and back."""

import json

import numpy as np
import pytest
import torch

import qkv
from qkv.cli import main
from qkv.data.pairs import start_of
from qkv.errors import SourceError
from qkv.interop import exporting, read_checkpoint
from qkv.models import build
from qkv.models.matrices import Catalogue
from qkv.tasks import PredictOptions
from qkv.tasks.beams import Search, search
from qkv.tokenizers.sentencepiece import OTHER
from qkv.tokenizers.tokenizer import fit_tokenizer, load_tokenizer
from qkv.views.sections.attention import read_pair
from qkv.views.viewer import Viewer

NAMES = ("marian", "marian untied")
START, END = 60, 0


def ours_of(folder, dtype):
    imported = read_checkpoint(folder, dtype=dtype)
    model = build(imported.config, 0).to(dtype).eval()
    Catalogue(model).load_state(imported.state)
    return model, imported


def pair():
    generator = torch.Generator().manual_seed(7)
    source, target = (torch.randint(1, 60, (3, n), generator=generator) for n in (14, 9))
    target[:, 0] = START
    mask = torch.ones_like(source, dtype=torch.bool)
    mask[1, 9:], mask[2, 4:] = False, False
    return torch.where(mask, source, START), target, mask


def gaps(model, ours):
    """Largest differences by name."""
    source, target, mask = pair()
    with torch.no_grad():
        out = model(
            input_ids=source, attention_mask=mask.long(), decoder_input_ids=target, output_hidden_states=True,
            output_attentions=True,
        )  # fmt: skip
        logits, record = ours.forward_recorded(source, target, mask)
        plain = ours(source, target, mask)
    found = {"logits": logits - out.logits, "plain": plain - out.logits}
    n = ours.config.sizes.n_layers
    for side, states, real in (("enc", out.encoder_hidden_states, mask), ("dec", out.decoder_hidden_states, ...)):
        mine = [record[f"{side}.L{layer}.resid_pre"] for layer in range(n)] + [record[f"{side}.L{n - 1}.resid_post"]]
        assert len(states) == len(mine)
        found |= {f"{side} hidden {i}": (a - b)[real] for i, (a, b) in enumerate(zip(mine, states, strict=True))}
    patterns = (
        ("enc.L{}", out.encoder_attentions),
        ("dec.L{}", out.decoder_attentions),
        ("dec.L{}.cross", out.cross_attentions),
    )
    for name, theirs in patterns:
        assert len(theirs) == n
        for layer, pattern in enumerate(theirs):
            gap = record[name.format(layer) + ".pattern"] - pattern
            found[f"{name} pattern {layer}"] = gap.transpose(1, 2)[mask] if name == "enc.L{}" else gap
    return {name: float(gap.abs().max()) for name, gap in found.items()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_logits_hidden_states_and_all_three_kinds_of_patterns_are_theirs(name, dtype, most, theirs, tmp_path):
    model = theirs.save_theirs(tmp_path / "them", name, dtype)
    ours, imported = ours_of(tmp_path / "them", dtype)
    if dtype == torch.float64:  # their table of sines went through float32
        for side in (model.model.encoder, model.model.decoder):
            (table,) = ours.enc.embedding.sines.tables(theirs.N_CTX, torch.float64, torch.device("cpu"))
            assert (side.embed_positions.weight - table).abs().max() < 1e-6
            side.embed_positions.weight.data.copy_(table)
    found = gaps(model, ours)
    assert max(found.values()) < most, found
    assert imported.marks == {
        "pad_token_id": START, "decoder_start_token_id": START, "eos_token_id": END, "forced_eos_token_id": END,
    }  # fmt: skip


def test_greedy_translations_are_theirs_token_for_token(theirs, tmp_path):
    model = theirs.save_theirs(tmp_path / "them", "marian", torch.float64)
    ours, _ = ours_of(tmp_path / "them", torch.float64)
    sources = [np.array([5, 9, 33, END]), np.array([12, 7, 41, 8, 19, END])]
    mine = search(ours, sources, Search(end=END, start=START, beams=1, most_tokens=12))
    for source, found in zip(sources, mine, strict=True):
        with torch.no_grad():
            out = model.generate(
                torch.from_numpy(source)[None], num_beams=1, do_sample=False, max_new_tokens=12,
                forced_eos_token_id=None,
            )[0, 1:]  # fmt: skip
        yours = out[: int((out == END).nonzero()[0])] if (out == END).any() else out
        assert found.ids.tolist() == yours.tolist()


@pytest.mark.parametrize("name", NAMES)
def test_export_import_export_gives_the_same_bytes_and_their_class_the_same_logits(name, theirs, tmp_path):
    import transformers

    model = theirs.save_theirs(tmp_path / "them", name)
    for source, target in (("them", "one"), ("one", "two")):
        read = read_checkpoint(tmp_path / source)
        fit = exporting.write_checkpoint(
            read.config, read.state, None, tmp_path / target, card="", wanted="marian", marks=read.marks
        )
        assert fit.family is not None and fit.family.name == "marian"
    one, two = ({p.name: p.read_bytes() for p in (tmp_path / folder).iterdir()} for folder in ("one", "two"))
    assert one == two
    loaded, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "one", output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    source, target, mask = pair()
    with torch.no_grad():
        asked = dict(input_ids=source, attention_mask=mask.long(), decoder_input_ids=target)
        assert (loaded.eval()(**asked).logits - model(**asked).logits).abs().max() < 1e-5
    assert loaded.generation_config.decoder_start_token_id == START


def test_an_imported_pair_model_is_a_run_that_commands_open(theirs, tmp_path, capsys):
    theirs.save_theirs(tmp_path / "hf", "marian")
    assert main(["import", str(tmp_path / "hf"), "--out", str(tmp_path / "run")]) == 0
    run = qkv.load(tmp_path / "run")
    assert run.task.name == "translate" and run.matrix("dec.L1.cross.H2.OV").singular_values().shape == (8,)
    assert main(["show", str(run.path)]) == 0 and main(["show", str(run.path), "dec.L0.cross.W_Q"]) == 0
    assert main(["report", str(run.path)]) == 0
    assert main(["export", str(run.path), "--out", str(tmp_path / "out")]) == 0
    again = read_checkpoint(tmp_path / "out")
    assert again.marks["decoder_start_token_id"] == START
    assert all(torch.equal(again.state[a], p) for a, p in run.catalogue().state().items())
    assert "translation" in (tmp_path / "out" / "README.md").read_text()
    capsys.readouterr()


def test_a_target_begins_in_the_views_where_the_model_learned_to_begin_it(theirs, tmp_path, capsys):
    theirs.save_theirs(tmp_path / "hf", "marian")
    fit_tokenizer("word", [theirs.WORDS * 20], 40, end=True).save(tmp_path / "hf" / "tokenizer.json")
    assert main(["import", str(tmp_path / "hf"), "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    pair = read_pair(Viewer(tmp_path / "run"), "the cat sat => a dog", 8)
    assert pair.inputs[0, 0] == START and pair.source_tokens[:2] == ("the", "cat")


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")  # which cuts nothing
def test_a_model_with_a_tokenizer_for_each_side_translates_texts_as_theirs_and_goes_back(theirs, tmp_path, capsys):
    import transformers

    place = theirs.save_sides(tmp_path / "hf", theirs.side(theirs.GERMAN, 1), theirs.side(theirs.ENGLISH, 2), ("▁das",))
    n = len(json.loads((place / "vocab.json").read_text()))
    marks = {"pad_token_id": n - 1, "decoder_start_token_id": n - 1, "bad_words_ids": None}
    model = theirs.save_theirs(place, "marian", vocab_size=n, **marks)
    published = transformers.MarianTokenizer(
        *(str(place / name) for name in ("source.spm", "target.spm", "vocab.json"))
    )
    texts = ["das Haus läuft über die Straße.", "zwei grüne Mädchen spielen"]

    def told(model, tokenizer, text):
        ids = tokenizer(text, return_tensors="pt").input_ids
        banned = [[published.unk_token_id], [n - 1]]
        asked = dict(num_beams=1, do_sample=False, max_new_tokens=11, forced_eos_token_id=None, bad_words_ids=banned)
        return tokenizer.decode(model.generate(ids, **asked)[0], skip_special_tokens=True).strip()

    assert main(["import", str(place), "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    run = qkv.load(tmp_path / "run")
    assert {"tokenizer.json", "tokenizer.source.json"} <= set(
        json.loads((run.path / "manifest.json").read_text())["files"]
    )
    assert run.tokenizer.start == n - 1 == Viewer(run.path).tokenizer.start
    assert [found.ids.tolist() for found in run.embed(texts)] == [published(text).input_ids for text in texts]
    mine = run.predict(texts, PredictOptions(beams=1))
    for text, output in zip(texts, mine, strict=True):
        assert output.startswith(told(model, published, text)) and output
    assert main(["show", str(run.path), "--text", f"{texts[0]} => the house runs"]) == 0
    shown = capsys.readouterr().out
    assert "ß" in shown and OTHER not in shown
    assert main(["export", str(run.path), "--out", str(tmp_path / "out")]) == 0
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert type(again).__name__ == "MarianTokenizer"
    assert [again(t).input_ids for t in texts] == [published(t).input_ids for t in texts]
    loaded = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
    assert told(loaded, again, texts[0]) == told(model, published, texts[0])
    assert main(["import", str(tmp_path / "out"), "--out", str(tmp_path / "run2")]) == 0
    assert main(["export", str(tmp_path / "run2"), "--out", str(tmp_path / "out2")]) == 0
    one, two = (
        {p.name: p.read_bytes() for p in (tmp_path / f).iterdir() if p.suffix != ".md"} for f in ("out", "out2")
    )
    assert one == two
    capsys.readouterr()


def test_a_model_that_was_trained_further_goes_out_with_the_start_that_its_targets_had(theirs, tmp_path):
    place = theirs.save_sides(tmp_path / "hf", theirs.side(theirs.GERMAN, 1), theirs.side(theirs.ENGLISH, 2))
    n = len(json.loads((place / "vocab.json").read_text()))
    theirs.save_theirs(place, "marian", vocab_size=n, pad_token_id=n - 1, decoder_start_token_id=n - 1)
    read, tokenizer = read_checkpoint(place), load_tokenizer(place, end=True)  # as a training reads it
    exporting.write_checkpoint(read.config, read.state, tokenizer, tmp_path / "out", card="")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert start_of(tokenizer) == written["decoder_start_token_id"] == n - 1 != written["eos_token_id"]


def test_sentencepiece_files_are_named_and_not_taken_for_a_tokenizer(theirs, tmp_path):
    theirs.save_theirs(tmp_path / "hf", "marian")
    for name in ("source.spm", "target.spm"):
        (tmp_path / "hf" / name).write_bytes(b"{}")
    read = read_checkpoint(tmp_path / "hf")
    assert read.tokenizer is None
    (note,) = (note for note in read.notes if "tokenizer" in note)
    assert (
        "source.spm and target.spm are SentencePiece, which is not read but as source.spm + target.spm + vocab.json"
        in note
    )
    assert note.endswith("the model takes ids, and no text")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"decoder_layers": 3}, ("decoder_layers", "encoder_layers is 2")),
        ({"decoder_attention_heads": 4}, ("decoder_attention_heads", "encoder_attention_heads is 3")),
        ({"decoder_vocab_size": 40}, ("decoder_vocab_size", "vocab_size is 61")),
        ({"tie_word_embeddings": False}, ("tie_word_embeddings", "share_encoder_decoder_embeddings")),
        ({"normalize_before": True}, ("normalize_before",)),
        ({"decoder_start_token_id": 61}, ("decoder_start_token_id is 61", "0 to 60")),
        ({"eos_token_id": "end"}, ("eos_token_id is end", "number of a token")),
    ],
)
def test_a_config_of_pairs_that_cannot_be_had_is_refused_by_name(changes, words, theirs, tmp_path):
    theirs.save_theirs(tmp_path / "m", "marian")
    path = tmp_path / "m" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    (tmp_path / "m" / "generation_config.json").unlink(missing_ok=True)
    with pytest.raises(SourceError) as caught:
        read_checkpoint(tmp_path / "m")
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)
