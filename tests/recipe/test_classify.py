"""Whole trainings of a classifier on small texts: what is printed and kept, kill and resume, other bodies, mistakes."""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

import qkv
import tokenizers
from qkv import cli
from qkv.data.examples import encode_texts
from qkv.errors import UserError
from qkv.inspection.answers.answer import Evidence
from qkv.inspection.answers.loss import loss
from qkv.randomness import generator
from qkv.recipe import RunConfig
from qkv.telemetry.runs import listed
from qkv.views.report.command import command_of

SMALL = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_mlp": 32, "batch_size": 16, "dropout": 0.1}
GOOD, BAD, OTHER = "good fine great".split(), "bad poor awful".split(), "film plot cast score the a of and".split()


def sentences(n: int, name: str) -> list[tuple[str, str]]:
    """(label, text): a good or a bad word among others, never both."""
    draws, rows = generator("tests", "classify", name), []
    for _ in range(n):
        label = int(draws.integers(2))
        words = [*draws.choice(OTHER, size=int(draws.integers(2, 8))), draws.choice((BAD, GOOD)[label])]
        rows.append(("up" if label else "down", " ".join(draws.permutation(words))))
    return rows


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "films.tsv"
    rows = "".join(f"{text}\t{label}\n" for label, text in sentences(600, "table"))
    path.write_text("text\tlabel\n" + rows, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.api.cache_folder", lambda: cache)


def train(source: Path, out: Path, **options):
    given = {"task": "classify", "steps": 60, "set": SMALL, "precision": "fp32", "report": False} | options
    return qkv.train(source, out=out, **given)


@pytest.fixture(scope="module")
def run(table: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qkv.api.cache_folder", lambda: cache)
        return train(table, tmp_path_factory.mktemp("runs") / "run", steps=150, report=True)


def said(capsys: pytest.CaptureFixture, *words: object) -> str:
    capsys.readouterr()
    assert cli.main([str(word) for word in words]) == 0
    return capsys.readouterr().out


def test_it_learns_and_its_summary_has_accuracy_and_baselines(run) -> None:
    summary = run.summary
    assert summary["accuracy"] > 0.95 and summary["val_loss"] < 0.3 and summary["bits_per_byte"] is None
    low, high = summary["accuracy_interval"]
    assert low <= summary["accuracy"] <= high
    assert set(summary["baselines"]) == set(summary["baselines_nats"]) == {"majority", "tfidf"}
    assert summary["baselines"]["tfidf"] == 1.0 and 0.4 < summary["baselines"]["majority"] < 0.7
    assert run.model.config.classes == ("down", "up")


def test_its_loss_and_its_sample_are_those_of_its_answers(run, table, tmp_path, capsys) -> None:
    stored = run.summary["stored_loss"]
    assert run.loss == listed(run.path.parent)[0].loss == stored != run.summary["val_loss"]
    alone = train(table, tmp_path / "alone", steps=3, set={**SMALL, "linear": "false"})
    assert alone.loss == alone.summary["val_loss"] and "stored_loss" not in alone.summary
    for one in (run, alone):
        with one.telemetry() as telemetry:
            sample = telemetry.samples()[-1]
        assert (sample.step, sample.text) == (one.summary["best_step"], *one.predict([sample.prompt]))
    figures = json.loads(said(capsys, "compare", run.path, alone.path, "--json"))["figures"]
    assert figures["stored_loss"] == [stored, alone.loss]
    assert figures["val_loss"] == [each.summary["val_loss"] for each in (run, alone)]
    assert "`val_loss` and `last_val_loss` are of attention alone" in said(capsys, "compare", run.path, alone.path)


def test_predict_eval_embed_show_report_and_compare_take_it(run, table, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    out = json.loads(said(capsys, "predict", run.path, "the film of good", "awful and the", "--json"))
    assert out["outputs"] == ["up", "down"]
    assert said(capsys, "predict", run.path, "a great cast") == "up\ta great cast\n"
    best = run.scores(["a cast"], 1)[0][0]["probability"]
    assert said(capsys, "predict", run.path, "a cast", "--at-least", best + 1e-6) == "(not sure)\ta cast\n"
    found = json.loads(said(capsys, "predict", run.path, "a cast", "great", "--at-least", best + 1e-6, "--json"))
    assert found["outputs"] == [None, "up"]
    found = json.loads(said(capsys, "eval", run.path, "--json"))
    assert found["loss"] == pytest.approx(run.summary["stored_loss"], rel=1e-6)
    names = (
        "accuracy calibration_error calibration_by_chance linear_accuracy attention_accuracy attention_share".split()
    )
    assert {name: found[name] for name in names} == {name: run.summary[name] for name in names}
    assert found["linear_accuracy"] == run.summary["baselines"]["tfidf"]
    assert found["accuracy_interval"] == run.summary["accuracy_interval"]
    assert "accuracy" in said(capsys, "eval", run.path)
    vectors = json.loads(said(capsys, "embed", run.path, "good film", "--json"))["outputs"][0]["vectors"]
    assert len(next(iter(vectors.values()))) == 16
    assert "W_cls" in said(capsys, "show", run.path, "--all")
    assert "film" in said(capsys, "show", run.path, "--text", "a good film")
    assert said(capsys, "show", run.path, "W_cls")
    other = train(table, tmp_path / "other", seed=2)
    assert "W_cls" in said(capsys, "compare", run.path, other.path)
    page = (run.path / "report.html").read_text(encoding="utf-8")
    for words in (
        "updates to predict the class of text.",
        "Is it good?",
        "95% interval of ",
        "TF-IDF + logistic regression",
        "W_cls",
    ):
        assert words in page


def test_another_file_is_scored_under_the_runs_own_classes(run, tmp_path: Path) -> None:
    path = tmp_path / "more.txt"
    path.write_text("".join(f"{label} {text}\n" for label, text in sentences(40, "more") if label == "up"))
    found = run.evaluate(path)
    assert found.accuracy > 0.9 and 10 < found.n_targets < 30
    path.write_text("sideways a film\nup good film\n")
    with pytest.raises(UserError, match="line 1 has the label 'sideways'.*down, up"):
        run.evaluate(path)


def test_the_columns_of_a_run_are_found_again_in_another_file_of_its_form(table: Path, tmp_path: Path) -> None:
    _, *rows = table.read_text().splitlines()
    made = [",tweet,target", *(f"{i},{row.replace(chr(9), ',')}" for i, row in enumerate(rows))]
    for name, lines in (("train.csv", made), ("test.csv", [*made[:1], *made[200:230]])):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    run = train(tmp_path / "train.csv", tmp_path / "run", steps=2, text_column="tweet", label_column="target")
    assert run.evaluate(tmp_path / "test.csv").n_targets == 30


@pytest.fixture(scope="module")
def pairs(cache: Path, tmp_path_factory: pytest.TempPathFactory):
    lines = (f"{text}\t{text} two\t{label}\n" for label, text in sentences(80, "pairs"))
    folder = tmp_path_factory.mktemp("pairs")
    (folder / "pairs.tsv").write_text("one\tother\tlabel\n" + "".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qkv.api.cache_folder", lambda: cache)
        return train(folder / "pairs.tsv", folder / "run", steps=2, text_column="one,other")


@pytest.mark.parametrize("text", ["good film [SEP] bad plot", "good film"])
def test_two_texts_are_read_alike_by_all_that_reads_them(pairs, capsys, text: str) -> None:
    (found,) = pairs.embed([text])
    ids, _ = encode_texts(pairs.tokenizer, [text], 2)
    assert found.ids.tolist() == ids.tolist() and found.tokens == text.split()
    assert [text[a:b] for a, b in found.offsets] == found.tokens
    assert cli.main(["show", str(pairs.path), "L0.resid_post", "--text", text]) == 0
    assert "[UNK]" not in capsys.readouterr().out


def test_the_tokenizer_of_an_export_puts_the_mark_between_two_texts(pairs, tmp_path: Path) -> None:
    pairs.export(tmp_path / "hf")
    read = tokenizers.Tokenizer.from_file(str(tmp_path / "hf" / "tokenizer.json"))
    ours = pairs.tokenizer.encode("good film [SEP] bad plot").tolist()
    assert read.encode("good film", "bad plot").ids == ours == read.encode("good film [SEP] bad plot").ids
    assert "`tokenizer(first, second)`" in (tmp_path / "hf" / "README.md").read_text()


def test_drift_is_recorded_beside_the_null_of_random_labels(run) -> None:
    with run.telemetry() as telemetry:
        pairs = {pair.address: pair for pair in telemetry.against_null("drift")}
        counts = telemetry.vector("W_E", "row_count")
    assert {"W_E", "W_cls", "L0.W_Q"} <= set(pairs)
    assert counts[run.tokenizer.vocabulary["good"]] > 50


def test_the_same_seed_gives_the_same_bytes(table: Path, tmp_path: Path) -> None:
    runs = [train(table, tmp_path / f"r{i}", seed=seed, steps=20) for i, seed in enumerate((5, 5, 6))]
    same, again, other = (hashlib.sha256((r.path / "model.safetensors").read_bytes()).digest() for r in runs)
    assert same == again != other


@pytest.mark.slow
def test_kill_and_resume_gives_the_same_bytes(table: Path, killed_and_resumed) -> None:
    options = ["--task", "classify", "--steps", "240", "--no-report", "--precision", "fp32", "--threads", "1"]
    options += ["--set", ",".join(f"{name}={value}" for name, value in SMALL.items())]
    whole, killed = killed_and_resumed(str(table), *options)
    for name in ("model.safetensors", "best.safetensors"):
        assert (whole / name).read_bytes() == (killed / name).read_bytes()
    assert (whole / "linear.safetensors").read_bytes() == (killed / "linear.safetensors").read_bytes()
    with qkv.load(whole).telemetry() as a, qkv.load(killed).telemetry() as b:
        assert [(e.step, e.loss) for e in a.evaluations()] == [(e.step, e.loss) for e in b.evaluations()]


@pytest.fixture(scope="module")
def parents(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A masked run of a tied layout and a causal one, on the texts without their labels."""
    folder = tmp_path_factory.mktemp("parents")
    (folder / "films.txt").write_text("".join(f"{text} .\n" for _, text in sentences(600, "plain")), encoding="utf-8")
    sizes = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_mlp": 32, "n_ctx": 16, "batch_size": 8}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qkv.api.cache_folder", lambda: cache)
        for task, preset in (("masked", "bert"), ("causal", "modern")):
            qkv.train(
                folder / "films.txt", task=task, preset=preset, tokenizer="word", steps=40, set=sizes,
                out=folder / task, report=False,
            )  # fmt: skip
    return {task: folder / task for task in ("masked", "causal")}


@pytest.mark.parametrize("task", ["masked", "causal"])
@pytest.mark.parametrize("way", ["fine-tuned", "feature-based"])
def test_the_body_of_another_run_is_taken_over_and_held_or_moved(parents, table, tmp_path, task, way) -> None:
    only = ["head"] if way == "feature-based" else []
    run = train(table, tmp_path / "run", from_run=str(parents[task]), set={"batch_size": 16}, only=only)
    body, start, end = (
        load_file(p) for p in (parents[task] / "best.safetensors", run.snapshots()[0], run.folder.model)
    )
    assert run.tokenizer.vocabulary == qkv.load(parents[task]).tokenizer.vocabulary
    assert run.model.causal == (task == "causal")
    heads = {"W_cls", "b_cls"}
    assert set(start) - heads == {address for address in body if address not in ("W_U", "b_U")}
    assert all(start[address].equal(body[address]) for address in start if address not in heads)
    moved = {address for address in start if not start[address].equal(end[address])}
    assert moved == (heads if only else set(start))


def test_how_texts_are_changed_is_asked_for_or_goes_by_the_depth_of_the_body(run, parents, table, tmp_path) -> None:
    def labels(run: qkv.Run) -> tuple[float, float]:
        config = RunConfig.read(run.folder.config)
        assert f"word_dropout={config.data.labels.word_dropout}" in command_of(config, None)
        return config.data.labels.word_dropout, config.data.labels.disturbed

    lines, sizes = parents["causal"].parent / "films.txt", {"d_model": 16, "n_layers": 3, "n_ctx": 16, "batch_size": 8}
    body = qkv.train(lines, task="masked", steps=2, set=sizes, out=tmp_path / "deep", tokenizer="word", report=False)
    how = {"from_run": str(body.path), "steps": 2}
    deep = train(table, tmp_path / "over", set={"batch_size": 16}, **how)
    asked = train(table, tmp_path / "asked", set={"batch_size": 16, "word_dropout": 0.25}, **how)
    assert labels(run) == (0.3, 0.2) and labels(deep) == (0.1, 0.1) and labels(asked) == (0.25, 0.1)


@pytest.mark.parametrize("preset", ["gpt2", "llama"])
def test_a_body_keeps_its_preset_whatever_was_made_for_the_task(table, tmp_path, preset) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(text for _, text in sentences(300, "lines")), encoding="utf-8")
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 2, "n_ctx": 16, "batch_size": 4}
    body = qkv.train(lines, out=tmp_path / "a", preset=preset, steps=2, set=sizes, tokenizer="word", report=False)
    run = train(table, tmp_path / "b", from_run=str(body.path), steps=2, set={"batch_size": 16})
    config = RunConfig.read(run.folder.config)
    assert (config.preset, config.model.kind) == (preset, "CausalClassifier")
    assert f"--from {body.path}" in command_of(config, None)


def test_a_bias_on_the_logits_stays_behind(tmp_path: Path) -> None:
    text = tmp_path / "films.txt"
    text.write_text("".join(f"{words} .\n" for _, words in sentences(60, "biased")), encoding="utf-8")
    sizes = {"d_model": 8, "n_layers": 1, "n_heads": 1, "n_ctx": 16, "head_bias": True}
    parent = qkv.train(text, tokenizer="word", steps=1, set=sizes, out=tmp_path / "a", report=False)
    labelled = tmp_path / "t.tsv"
    rows = [f"{words}\t{label}" for label, words in sentences(60, "biased")]
    labelled.write_text("text\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")
    run = qkv.train(labelled, task="classify", from_run=str(parent.path), steps=1, out=tmp_path / "b", report=False)
    assert "b_U" in load_file(parent.folder.best) and "b_U" not in load_file(run.folder.best)


def test_a_body_with_shared_matrices_is_taken_over_under_each_name(parents, table, tmp_path) -> None:
    shares = ["L1.W_Q=share(L0.W_Q)"]
    body = train(table, tmp_path / "body", from_run=str(parents["masked"]), set={"batch_size": 16}, change=shares)
    renamed = tmp_path / "renamed.tsv"
    renamed.write_text(table.read_text().replace("\tup", "\tplus").replace("\tdown", "\tminus"))
    run = train(renamed, tmp_path / "run", from_run=str(body.path), steps=2, set={"batch_size": 16})
    start, best = load_file(run.snapshots()[0]), load_file(body.folder.best)
    assert "L1.W_Q" not in best and start["L1.W_Q"].equal(best["L0.W_Q"]) and start["L0.W_Q"].equal(best["L0.W_Q"])


def test_a_classifier_goes_on_from_a_classifier_with_its_head_if_the_classes_are_the_same(run, table, tmp_path) -> None:
    again = train(table, tmp_path / "again", from_run=str(run.path), steps=2, set={"batch_size": 16})
    assert load_file(again.snapshots()[0])["W_cls"].equal(load_file(run.folder.best)["W_cls"])
    renamed = tmp_path / "renamed.tsv"
    renamed.write_text(table.read_text().replace("\tup", "\tplus").replace("\tdown", "\tminus"))
    other = train(renamed, tmp_path / "other", from_run=str(run.path), steps=2, set={"batch_size": 16})
    start, best = load_file(other.snapshots()[0]), load_file(run.folder.best)
    assert start["W_E"].equal(best["W_E"]) and not start["W_cls"].any()


def test_resuming_with_another_label_column_names_both(run) -> None:
    with pytest.raises(UserError, match="--label-column is mood, but the run was made with"):
        qkv.train(out=run.path, resume=True, label_column="mood")


def test_without_scikit_learn_the_linear_model_is_there_and_carries_an_attention_that_learned_nothing(
    table, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    run = train(table, tmp_path / "run", steps=1)
    assert run.summary["baselines"]["tfidf"] == run.summary["accuracy"] == 1.0 > run.summary["attention_accuracy"]
    assert "The linear model alone has 100%, attention alone" in " ".join(answer.more[2] for answer in answers(run))
    assert "It holds attention alone" in said(capsys, "export", run.path, "--out", tmp_path / "out")


def answers(run) -> list:
    with run.recorded() as telemetry:
        return [loss(Evidence(run.path, telemetry))]


def test_attention_alone_is_what_answers_where_it_is_asked_for(table, tmp_path) -> None:
    run = train(table, tmp_path / "run", steps=2, set=SMALL | {"linear": False})
    assert not (run.path / "linear.safetensors").exists() and "stored_loss" not in run.summary
    assert run.evaluate().loss == pytest.approx(run.summary["val_loss"], rel=1e-5)


def test_an_altered_linear_model_is_refused(table, tmp_path) -> None:
    run = train(table, tmp_path / "run", steps=1)
    path = run.path / "linear.safetensors"
    path.write_bytes(path.read_bytes()[:-8] + b"\0" * 8)
    with pytest.raises(UserError, match="linear.safetensors is damaged"):
        qkv.load(run.path).predict(["a film"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"label_column": "mood"}, "no column 'mood'.*text, label"),
        ({"task": "causal", "label_column": "label"}, "--task causal has no labels; leave it out"),
        ({"preset": "gpt2"}, "'gpt2' is for --task causal, not classify"),
        ({"set": SMALL | {"d_vocab": 5}}, "d_vocab is 5 but the tokenizer has"),
        ({"val": "nowhere.tsv"}, "no file or folder"),
    ],
)
def test_a_mistake_is_one_sentence_and_makes_no_folder(table: Path, tmp_path: Path, options, words: str) -> None:
    with pytest.raises(UserError, match=words):
        train(table, tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_texts_longer_than_the_context_are_told_of(table: Path, tmp_path: Path) -> None:
    heard: list[str] = []
    lengths = [len(text.split()) for _, text in sentences(600, "table")]
    train(table, tmp_path / "run", steps=2, set=SMALL | {"n_ctx": 5}, say=heard.append)
    n = int((np.array(lengths) > 5).sum())
    assert any(f"{n:,} of 600 texts are longer than the context of 5" in sentence for sentence in heard)
