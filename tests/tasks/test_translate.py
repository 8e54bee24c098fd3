"""The task translate: batches, smoothed loss, search with a cache, BLEU, and a whole run that learns."""

import dataclasses
import itertools
import json
import math
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import sacrebleu
import torch
import torch.nn.functional as F
from sacrebleu.metrics.bleu import BLEU

from qkv import api
from qkv.commands.show.pair import look
from qkv.data.baseline.dictionary import Dictionary
from qkv.data.config import DataConfig
from qkv.data.pairs import encode_lines
from qkv.errors import ConfigError, MissingExtra, UserError
from qkv.inspection.answers.answer import Evidence
from qkv.inspection.answers.loss import loss
from qkv.installing import install
from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.recipe.request import Request, resolve
from qkv.tasks import PredictOptions, evaluate, find_task
from qkv.tasks.beams import Search, search
from qkv.tasks.bleu import bleu, bleu_tokens
from qkv.tasks.crossentropy import linear_cross_entropy
from qkv.views.sections.attention import read_pair
from qkv.views.viewer import Viewer

TASK = find_task("translate")


@pytest.fixture(scope="module")
def corpus(small_pairs):
    return TASK.load(DataConfig(source=":".join(map(str, small_pairs))), cache=None)


@pytest.fixture(scope="module")
def model(corpus):
    sizes = Sizes(d_vocab=corpus.tokenizer.d_vocab, d_model=16, n_layers=2, n_heads=2, n_ctx=64)
    model = build(ModelConfig(kind="EncoderDecoderLM", sizes=sizes, layout=Layout(start="xavier", dropout=0.1)), 0)
    return model.double().eval()


# the loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("biased", [False, True])
def test_smoothed_cross_entropy_and_its_gradients_are_those_of_torch(smoothing, biased):
    generator = torch.Generator().manual_seed(0)
    h, weight, bias = (
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in ((7, 5), (5, 11), 11)
    )
    targets = torch.randint(0, 11, (7,), generator=generator)
    used = bias if biased else None
    leaves = [h, weight, *([bias] if biased else [])]
    ours = linear_cross_entropy(h, weight, used, targets, smoothing)
    logits = h @ weight + (bias if biased else 0)
    theirs = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    for got, expected in zip(torch.autograd.grad(ours, leaves), torch.autograd.grad(theirs, leaves), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_training_is_smoothed_and_validation_is_not(corpus, model):
    batch = TASK.train_batch(corpus, model.sizes, 1, 0, np.array([0]))
    logits = model(batch.source, batch.inputs, batch.source_mask).flatten(0, 1)
    logits = logits if batch.positions is None else logits[batch.positions]
    expected = F.cross_entropy(logits, batch.targets, reduction="sum", label_smoothing=0.1)
    torch.testing.assert_close(TASK.loss(model, batch)[0], expected, rtol=1e-10, atol=0)
    total = count = 0.0
    for batch in TASK.val_batches(corpus, model.sizes, 1):
        nats, n = TASK.loss(model, batch)
        assert float(TASK.score(model, batch).nats.sum()) == pytest.approx(float(nats.detach()), rel=1e-10)
        total, count = total + float(nats.detach()), count + n
    assert count == len(corpus.val.target)
    assert evaluate(model, TASK, corpus).loss == pytest.approx(total / count, rel=1e-9)


def test_the_validation_loss_is_that_of_each_pair_alone(corpus, model):
    total = 0.0
    for i in range(len(corpus.val)):
        source, target = (torch.tensor(side.document(i).astype(np.int64))[None] for side in _sides(corpus.val))
        inputs = torch.cat([torch.tensor([[corpus.tokenizer.end_id]]), target[:, :-1]], dim=1)
        total += float(F.cross_entropy(model(source, inputs)[0], target[0], reduction="sum").detach())
    whole = sum(float(TASK.loss(model, batch)[0].detach()) for batch in TASK.val_batches(corpus, model.sizes, 2))
    assert whole == pytest.approx(total, rel=1e-9)


def test_pairs_longer_than_the_context_are_counted_and_said(corpus, model):
    assert TASK.cautions(corpus, model.sizes) == []
    longest = [
        max(map(len, pair))
        for part in (corpus.train, corpus.val)
        for pair in zip(*map(_documents, _sides(part)), strict=True)
    ]
    n_ctx = sorted(longest)[len(longest) // 2]
    sizes = dataclasses.replace(model.sizes, n_ctx=n_ctx)
    counts = [sum(n > n_ctx for n in part) for part in (longest[: len(corpus.train)], longest[len(corpus.train) :])]
    assert (np.maximum(*corpus.train.lengths()) > n_ctx).sum() == counts[0] > 0 < counts[1]
    said = TASK.cautions(corpus, sizes)
    assert [sentence.split(" pairs are longer")[0] for sentence in said] == [
        f"{counts[0]} of {len(corpus.train)} training", f"{counts[1]} of {len(corpus.val)} validation"
    ]  # fmt: skip
    assert f"and are left out (--set n_ctx={max(longest[: len(corpus.train)])} reads all)." in said[0]
    assert "and are cut there" in said[1]


@pytest.mark.parametrize(("batch_size", "parts"), [(1, 1), ("2", 2), (5, 2)])
def test_a_batch_that_was_set_has_no_more_parts_than_buckets(small_pairs, batch_size, parts):
    source = ":".join(map(str, small_pairs))
    config, _, scale = resolve(Request(source=source, task="translate", steps=1, set={"batch_size": batch_size}), None)
    assert config.training.batch_size == int(batch_size) and config.training.accumulate == scale.accumulate == parts


def _documents(tokens):
    return [tokens.document(i) for i in range(tokens.n_documents)]


def _sides(pairs):
    return pairs.source, pairs.target


def test_a_batch_is_its_buckets_whatever_they_are_computed_with(corpus, model):
    together = TASK.train_batch(corpus, model.sizes, 1, 5, np.array([10, 11]))
    parts = [TASK.train_batch(corpus, model.sizes, 1, 5, np.array([e])) for e in (10, 11)]
    assert together.n_targets == sum(part.n_targets for part in parts)
    assert together.examples.tolist() == [name for part in parts for name in part.examples.tolist()]
    assert len(set(together.examples.tolist())) == len(together.inputs)
    alone = sum(float(TASK.loss(model, part)[0].detach()) for part in parts)
    assert float(TASK.loss(model, together)[0].detach()) == pytest.approx(alone, rel=1e-9)


# search


def _log_probabilities(model, source: np.ndarray, target: list[int], end: int) -> list[float]:
    inputs = torch.tensor([[end, *target[:-1]]])
    with torch.no_grad():
        rows = model(torch.tensor(source)[None], inputs)[0].log_softmax(-1)
    return [float(rows[i, t]) for i, t in enumerate(target)]


@pytest.fixture(scope="module")
def tiny():
    """Five words, so that every translation can be tried; 4 is the end."""
    sizes = Sizes(d_vocab=5, d_model=8, n_layers=1, n_heads=2, n_ctx=16)
    config = ModelConfig(kind="EncoderDecoderLM", sizes=sizes, layout=Layout(start="xavier"))
    model = build(config, 3).double().eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.data += 0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


SOURCES = [np.array([0, 1, 4]), np.array([2, 4]), np.array([3, 3, 1, 0, 4])]


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_enough_beams_find_the_best_of_all_translations(tiny, penalty):
    how = Search(end=4, beams=200, length_penalty=penalty, most_tokens=4)
    for source, found in zip(SOURCES, search(tiny, SOURCES, how), strict=True):
        best, which = -math.inf, ()
        for n in range(4):
            for words in itertools.product(range(4), repeat=n):
                total = sum(_log_probabilities(tiny, source, [*words, 4], 4))
                if how.score(total, n + 1) > best:
                    best, which = how.score(total, n + 1), words
        assert found.finished and found.ids.tolist() == list(which)
        assert how.score(found.log_probability, len(which) + 1) == pytest.approx(best, abs=1e-9)


def test_greedy_takes_the_likeliest_token_each_time_with_and_without_a_cache(tiny):
    for source, found in zip(SOURCES, search(tiny, SOURCES, Search(end=4, beams=1)), strict=True):
        target: list[int] = []
        for _ in range(2 * len(source) + 10):
            if len(target) == 15:
                break
            inputs = torch.tensor([[4, *target]])
            with torch.no_grad():
                token = int(tiny(torch.tensor(source)[None], inputs)[0, -1].argmax())
            if token == 4:
                break
            target.append(token)
        assert found.ids.tolist() == target[: len(found.ids)] and (not found.finished or len(target) == len(found.ids))


@pytest.mark.parametrize("beams", [1, 3])
def test_a_translation_does_not_depend_on_its_neighbours(tiny, beams):
    how = Search(end=4, beams=beams)
    together = search(tiny, SOURCES, how)
    for source, found in zip(SOURCES, together, strict=True):
        (alone,) = search(tiny, [source], how)
        assert alone.ids.tolist() == found.ids.tolist()
        assert alone.log_probability == pytest.approx(found.log_probability, abs=1e-9)
        expected = sum(_log_probabilities(tiny, source, [*found.ids.tolist(), 4], 4)) if found.finished else None
        assert expected is None or found.log_probability == pytest.approx(expected, abs=1e-9)


def test_banned_tokens_are_never_chosen_and_settings_out_of_range_are_refused(tiny):
    found = search(tiny, SOURCES, Search(end=4, beams=2, banned=[0, 1]))
    assert not {0, 1} & {int(i) for each in found for i in each.ids}
    with pytest.raises(ConfigError, match="beams is 0; expected 1"):
        Search(end=4, beams=0)
    for wrong in (-1, 900, math.nan):
        with pytest.raises(ConfigError, match=f"length_penalty is {wrong}; expected a number from 0 to 10"):
            PredictOptions(length_penalty=wrong)


# BLEU


def test_bleu_is_sacrebleus_and_its_interval_holds_it():
    references = ["The cat sat on the mat.", "Two men walk their dogs!", "A girl reads a book in a park."] * 8
    outputs = ["The cat sat on a mat.", "Two men are walking dogs!", "A girl is reading a book in the park."] * 8
    value, interval = bleu(outputs, references)
    assert value == pytest.approx(BLEU().corpus_score(outputs, [references]).score, abs=1e-9)
    assert interval is not None and interval[0] < value < interval[1]
    assert bleu(outputs, references) == (value, interval)
    assert bleu(references, references)[0] == 100
    assert bleu(["cat"], ["dog house"])[1] is None


def test_bleu_counts_characters_where_words_have_no_spaces_or_lines_are_short():
    japanese, short = ["犬は家で寝ています。", "猫は庭で走っています。"], ["Good day", "Run!", "Thank you"]
    for lines in (japanese, short):
        assert bleu_tokens(lines) == "char"
        value, interval = bleu(lines, lines)
        assert value == pytest.approx(100) and interval == pytest.approx((100, 100))
        worse = [line[1:] for line in lines]
        assert bleu(worse, lines)[0] == pytest.approx(sacrebleu.corpus_bleu(worse, [lines], tokenize="char").score)
    assert bleu_tokens(["A man sees 犬 here."]) == bleu_tokens(["one two three four", "x"]) == "13a"
    assert Dictionary(japanese, ["the dog", "the cat"]).translate("犬").split() == ["dog"]


def test_without_sacrebleu_one_is_told_what_to_type(monkeypatch, small_pairs):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    with pytest.raises(MissingExtra, match=re.escape(install("translate"))):
        TASK.load(DataConfig(source=":".join(map(str, small_pairs))), cache=None)


# a run


@pytest.fixture(scope="module")
def run(small_pairs, tmp_path_factory):
    out = tmp_path_factory.mktemp("translate") / "run"
    sizes = {"d_model": 64, "n_layers": 1, "batch_size": 2, "accumulate": 2, "dropout": 0.05}
    source = ":".join(map(str, small_pairs))
    return api.train(source, task="translate", steps=60, out=out, set=sizes, precision="fp32", threads=1, report=False)


def test_a_run_learns_to_translate_and_beats_its_baselines(run, small_pairs):
    summary = run.summary
    assert summary["bleu"] > 90 > summary["baselines"]["dictionary"] > summary["baselines"]["copy"]
    low, high = summary["bleu_interval"]
    assert low <= summary["bleu"] <= high and summary["bits_per_byte"] is None
    assert run.predict(["zu Hause sieht der König eine Frau."]) == ["the king sees a woman at home."]
    assert run.predict(["", "hier mag die Katze der Hund."], PredictOptions(temperature=0.0, beams=None)) == [
        "",
        "the cat likes the dog here.",
    ]
    found = run.evaluate()
    assert found.figures["bleu"].value == pytest.approx(summary["bleu"])
    assert found.loss == pytest.approx(summary["val_loss"], rel=1e-3) and found.n_windows == len(run.corpus().val)
    data = run.corpus()
    few = dataclasses.replace(TASK, most_translated=10)
    some, n = few.evaluate(run.model, data), len(data.val)
    assert some.note == f"BLEU is that of 10 of {n} validation pairs, spread evenly" and found.note == ""
    assert some.loss == pytest.approx(found.loss) and some.n_windows == n
    assert few.judging_seconds(data, run.config.model.sizes) < TASK.judging_seconds(data, run.config.model.sizes)
    elsewhere = run.evaluate(":".join(map(str, small_pairs)))
    assert elsewhere.n_windows == 600


def test_a_short_run_says_over_which_pairs_its_bleu_and_those_of_the_baselines_are(monkeypatch, small_pairs, tmp_path):
    monkeypatch.setattr(type(TASK), "in_brief", lambda task: dataclasses.replace(task, most_translated=10))
    how = {"set": {"d_model": 16, "n_layers": 1}, "watch": "off", "threads": 1, "report": False}
    source = ":".join(map(str, small_pairs))
    run = api.train(source, task="translate", minutes=0.04, out=tmp_path / "run", **how)
    sources, references = run.corpus().lines("val")
    kept = np.linspace(0, len(sources) - 1, 10).round().astype(int)
    copied = bleu([sources[i] for i in kept], [references[i] for i in kept])[0]
    assert run.summary["baselines"]["copy"] == copied != bleu(sources, references)[0]
    assert run.summary["note"] == f"BLEU is that of 10 of {len(sources)} validation pairs, spread evenly"
    with run.telemetry() as telemetry:
        said = loss(Evidence(run.path, telemetry)).more[0]
    assert said.startswith(f"{run.summary['note']}, with a 95% interval of ")


def test_vectors_of_a_source_are_those_of_what_the_model_reads(run):
    text = "zu Hause  sieht der König"
    (found,) = run.embed([text])
    ids, _ = encode_lines(run.tokenizer.of_source, [" ".join(text.split())])
    assert found.ids.tolist() == ids.tolist() and found.text == text and found.ids[-1] == run.tokenizer.end_id
    start = torch.tensor([[run.tokenizer.end_id]])
    with torch.no_grad():
        _, record = run.model.forward_recorded(torch.from_numpy(ids)[None], start)
    np.testing.assert_allclose(found.at("L0.resid_post"), record["enc.L0.resid_post"][0].numpy(), atol=1e-5)
    with pytest.raises(UserError, match="has no tokens"):
        run.embed([" "])


def test_cross_attention_is_shown_as_an_alignment(run, capsys):
    from qkv.cli import main

    assert main(["show", str(run.path), "--text", "hier mag die Katze der Hund.", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    mean = np.array(shown["mean"])
    assert mean.shape == (len(shown["target"]), len(shown["source"])) and shown["translated"]
    np.testing.assert_allclose(mean.sum(1), 1, atol=1e-5)
    assert [i for i, _ in shown["alignment"]] == list(range(len(shown["target"])))
    given = "hier mag die Katze der Hund. => the dog"
    assert main(["show", str(run.path), "dec.L0.cross.H0.pattern", "--text", given, "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert len(one["values"]) == len(one["tokens"]) and len(one["values"][0]) == len(one["keys"])
    for command in (
        ["show", str(run.path), "--text", given],
        ["show", str(run.path), "--all"],
        ["report", str(run.path)],
    ):
        assert main(command) == 0
    out = capsys.readouterr().out
    assert "dec.L0.cross.H1" in out and "attends most to" in out and "dec.L0.cross " in out
    assert main(["show", str(run.path), "--text", "=> the dog"]) == 2
    assert "empty side" in capsys.readouterr().err


def searched(monkeypatch):
    """What a translation is searched for from, and how: filled as it happens, nothing is searched."""
    asked = []

    def instead(model, sources, how):
        asked.extend((ids.tolist(), how) for ids in sources)
        return [SimpleNamespace(ids=ids) for ids in sources]

    monkeypatch.setattr("qkv.tasks.translate.search", instead)
    return asked


def test_a_source_is_read_as_it_was_trained_on_wherever_it_is_read(run, monkeypatch):
    text, asked = "hier  mag\u00a0die\tKatze", searched(monkeypatch)
    wanted = encode_lines(run.tokenizer, [text])[0].tolist()
    run.predict([f" {text}\n"])
    assert [ids for ids, _ in asked] == [wanted]
    pair = read_pair(Viewer(run.path), f" {text} => the  dog", 32)
    assert pair.source[0].tolist() == wanted
    shown = look(run, f" {text} => the  dog", None)
    assert shown.source == list(pair.source_tokens) and shown.target == list(pair.written)


def test_no_special_token_is_ever_chosen_but_the_end(run, monkeypatch):
    asked = searched(monkeypatch)
    monkeypatch.setattr(run.tokenizer, "special_ids", run.tokenizer.special_ids | {7})  # as imported ones have
    run.predict(["hier"])
    assert 7 in asked[0][1].banned and run.tokenizer.end_id not in asked[0][1].banned


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (PredictOptions(temperature=0.7), "searched for, not drawn"),
        (PredictOptions(), "line 1 has .* tokens; this model reads 64: split it"),
    ],
)
def test_what_cannot_be_translated_is_said_in_one_sentence(run, options, message):
    with pytest.raises(ConfigError, match=message):
        run.predict(["Hund " * 100], options)


def test_a_run_ends_whose_validation_sources_are_longer_than_its_context(small_pairs, tmp_path):
    short, long = tmp_path / "short", tmp_path / "long"
    for folder in (short, long):
        folder.mkdir()
    for path in small_pairs:
        (short / path.name).write_text("ja\n" * 40, encoding="utf-8")
        (long / path.name).write_text(" ".join(["ja"] * 30) + "\n", encoding="utf-8")
    source, val = (":".join(str(folder / path.name) for path in small_pairs) for folder in (short, long))
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 2, "n_ctx": 16, "batch_size": 2, "accumulate": 1}
    asked = {"task": "translate", "tokenizer": "word", "steps": 1, "threads": 1, "precision": "fp32", "report": False}
    run = api.train(source, val=val, out=tmp_path / "run", set=sizes, **asked)
    with run.telemetry() as telemetry:
        assert run.folder.is_finished and [sample.prompt for sample in telemetry.samples()] == [" ".join(["ja"] * 30)]


@pytest.mark.slow
def test_a_stopped_run_goes_on_to_the_same_bytes(small_pairs, tmp_path):
    """Killed between checkpoints; the resumed run ends with the weights of one that was left alone."""
    source = ":".join(map(str, small_pairs))
    sizes = "d_model=32,n_layers=1,dropout=0.1,batch_size=3,accumulate=2,eval_every=8"
    base = [sys.executable, "-m", "qkv", "train"]
    how = ["--task", "translate", "--steps", "24", "--threads", "1", "--precision", "fp32", "--no-report"]
    subprocess.run([*base, source, *how, "--set", sizes, "--out", str(tmp_path / "whole")], check=True)
    killing = (
        "import os, qkv.training.loop as loop\n"
        "save, n = loop.save, []\n"
        "def saved(session):\n"
        "    save(session); session.checkpoints.wait()\n"
        "    session.state.step >= 8 and os._exit(9)\n"
        "loop.save = saved\n"
        "from qkv.cli import main\n"
        f"main({['train', source, *how, '--set', sizes, '--out', str(tmp_path / 'cut')]!r})\n"
    )
    assert subprocess.run([sys.executable, "-c", killing]).returncode == 9
    subprocess.run([*base, "--out", str(tmp_path / "cut"), "--resume", "--no-report"], check=True)
    for name in ("model.safetensors", "best.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()


def test_a_model_may_start_from_a_translation_run(run, small_pairs, tmp_path):
    source = ":".join(map(str, small_pairs))
    other = api.train(
        source,
        task="translate",
        from_run=str(run.path),
        steps=1,
        out=tmp_path / "on",
        threads=1,
        precision="fp32",
        report=False,
        freeze=["enc.**"],
    )
    before, after = (r.catalogue().state() for r in (run, api.load(other.path, weights="last")))
    assert torch.equal(before["enc.L0.W_Q"], after["enc.L0.W_Q"])
    assert dataclasses.replace(other.config.model) == run.config.model
    assert any(not torch.equal(before[a], after[a]) for a in before if a.startswith("dec."))
