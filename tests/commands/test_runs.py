"""The commands over one small run, as a person would use them."""

import contextlib
import errno
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from qkv import api, cli
from qkv.errors import AddressError, ConfigError, UserError
from qkv.tasks import PredictOptions

SMALL = ["--tokenizer", "char", "--set", "d_model=32,n_layers=2,n_heads=2,n_ctx=32", "--threads", "1"]
KEYS = {
    "run", "steps", "tokens", "val_loss", "last_val_loss", "best_step", "bits_per_byte", "train_seconds",
    "total_seconds", "tokens_per_second", "parameters", "stopped_because", "resumed_from_step", "baselines",
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory, small_text):
    """Two causal runs of different seeds: their folders, and what `--json` printed for the first."""
    folder = tmp_path_factory.mktemp("runs")
    printed = []
    for seed in ("1", "2"):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            words = ["train", str(small_text), *SMALL, "--steps", "12", "--seed", seed, "--no-report", "--json"]
            assert cli.main([*words, "--out", str(folder / seed)]) == 0
        printed.append(json.loads(out.getvalue()))
    return folder / "1", folder / "2", printed[0]


def said(capsys, *words: object, status: int = 0) -> str:
    capsys.readouterr()
    got = cli.main([str(word) for word in words])
    out, err = capsys.readouterr()
    assert got == status, err
    return out


def test_train_json_is_one_object_with_the_contract_s_keys(runs):
    summary = runs[2]
    assert summary.keys() >= KEYS
    assert summary["steps"] == 12 and summary["stopped_because"] == "steps" and summary["resumed_from_step"] is None
    assert 0 < summary["bits_per_byte"] < 8
    assert summary["baselines"].keys() >= {"unigram", "bigram", "ngram", "ngram_order", "xz"}


def test_train_tells_a_person_loss_baselines_sample_and_what_is_next(runs, small_text, tmp_path, capsys):
    out = said(capsys, "train", small_text, *SMALL, "--steps", 3, "--out", tmp_path / "r", "--no-report")
    for words in ("validation loss", "unigram", "bigram", "best n-gram", "xz", "It writes:", "qkv show", "qkv predict"):
        assert words in out
    assert str(tmp_path / "r") in out


def test_a_finished_run_resumed_says_so(runs, capsys):
    out = said(capsys, "train", "--out", runs[0], "--resume", "--json")
    assert json.loads(out)["steps"] == 12


def test_resume_with_another_option_names_both(runs, capsys):
    assert cli.main(["train", "--out", str(runs[0]), "--resume", "--seed", "9"]) == 2
    err = capsys.readouterr().err
    assert "--seed" in err and "9" in err and "1" in err


def test_predict_continues_every_text(runs, capsys):
    out = said(capsys, "predict", runs[0], "the cat", "a dog", "--tokens", 10, "--json")
    answer = json.loads(out)
    assert answer["inputs"] == ["the cat", "a dog"]
    assert [len(text) for text in answer["outputs"]] == [10, 10]
    plain = said(capsys, "predict", runs[0], "the cat", "--tokens", 10)
    assert plain.startswith("the cat")
    greedy = [said(capsys, "predict", runs[0], "the cat", "--temperature", 0, "--seed", s) for s in (1, 2)]
    assert greedy[0] == greedy[1]


def test_one_string_is_no_list_of_them(runs, small_text, tmp_path):
    run = api.load(runs[0])
    asked = {
        "texts": [run.predict, run.embed, run.layer_measures, lambda text: run.report(tmp_path / "r.html", texts=text)],
        "changes": [run.changed, lambda change: run.evaluate(changes=change)],
        "freeze": [lambda name: api.train(small_text, freeze=name, out=tmp_path / "never")],
    }
    for what, asks in asked.items():
        for ask in asks:
            with pytest.raises(UserError, match=f"{what} is the string 'W_E'; expected a list"):
                ask("W_E")
            with pytest.raises(UserError, match=f"{what} holds 3; expected strings"):
                ask([3])
    assert not list(tmp_path.iterdir())


def test_predictions_are_told_how_by_keywords(runs):
    run = api.load(runs[0])
    how = PredictOptions(tokens=5, temperature=0)
    expected = run.predict(["the king"], how)
    assert run.predict(["the king"], tokens=5, temperature=0) == expected != run.predict(["the king"], how, tokens=9)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"max_new_tokens": 5}, "unknown option of predict 'max_new_tokens'; here it is 'tokens'"),
        ({"temperatur": 5}, "unknown option of predict 'temperatur'; did you mean 'temperature'"),
        ({"beams": 2}, "beams has no meaning for the task causal, whose predictions go by tokens or temperature"),
        ({"tokens": "many"}, "tokens is 'many'; expected a whole number"),
        ({"top_k": -1}, "top_k is -1; expected 0"),
    ]
    for given, said in refused:
        with pytest.raises(ConfigError, match=said):
            run.predict(["the king"], **given)


def test_predict_reads_one_text_a_line_from_stdin(runs, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("the cat\na dog\n"))
    answer = json.loads(said(capsys, "predict", runs[0], "--tokens", 2, "--json"))
    assert answer["inputs"] == ["the cat", "a dog"]


def test_predict_without_a_text_asks_for_one(runs, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert cli.main(["predict", str(runs[0])]) == 2
    assert "no text was given" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("predict RUN the --beams 3", "--beams has no meaning for a run of the task causal, whose predictions go by"),
        ("predict RUN the --length-penalty 1", "--length-penalty has no meaning"),
        ("embed RUN the --measures --layer 1", "--measures tells of every layer and all tokens; leave --layer out"),
        ("embed RUN --measures --per-token", "leave --per-token out"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(runs, words, part, capsys):
    capsys.readouterr()
    assert cli.main([str(runs[0]) if word == "RUN" else word for word in words.split()]) == 2
    assert part in capsys.readouterr().err


def test_eval_repeats_the_loss_of_training_and_takes_changes(runs, capsys):
    same = json.loads(said(capsys, "eval", runs[0], "--json"))
    assert same["loss"] == pytest.approx(runs[2]["val_loss"], rel=1e-5)
    assert same["bits_per_byte"] == pytest.approx(runs[2]["bits_per_byte"], rel=1e-5)
    assert same["loss_interval"][0] < same["loss"] < same["loss_interval"][1]
    changed = json.loads(said(capsys, "eval", runs[0], "--change", "L0.W_V=zero,L1.W_V=zero", "--json"))
    assert changed["changes"] == ["L0.W_V=zero", "L1.W_V=zero"]
    assert changed["loss"] != same["loss"]
    assert "nats per target" in said(capsys, "eval", runs[0])


def test_eval_says_what_a_change_does_and_who_shares_the_matrix(tmp_path, small_text, capsys):
    words = "--tokenizer char --steps 2 --threads 1 --watch off --no-report --json --set".split()
    sizes = "d_model=16,n_layers=1,n_heads=2,n_kv_heads=1,n_ctx=16,tied=true"
    said(capsys, "train", small_text, *words, sizes, "--out", tmp_path / "tied")
    out = said(capsys, "eval", tmp_path / "tied", "--change", "L0.H0.W_K=zero,W_U=scale(2)")
    assert "L0.H0.W_K (the same matrix as L0.H1.W_K): set to 0.\n" in out and "the same matrix as W_E" in out
    made = json.loads(said(capsys, "eval", tmp_path / "tied", "--change", "W_U=zero", "--json"))["changes_made"]
    assert made == ["W_U (the same matrix as W_E): set to 0."]


def test_eval_tells_the_loss_by_position_and_the_perplexity_by_words(runs, capsys):
    found = json.loads(said(capsys, "eval", runs[0], "--json"))
    assert [place["last"] for place in found["by_position"]] == [1, 2, 4, 8, 16, 32]
    low, high = found["word_perplexity_interval"]
    assert 1 < low < found["word_perplexity"] < high
    out = said(capsys, "eval", runs[0], "--by-position")
    assert "positions read" in out and "17 to 32" in out and "perplexity by words" in out
    assert "positions read" not in said(capsys, "eval", runs[0])


def test_eval_on_another_text(runs, tmp_path, capsys):
    other = tmp_path / "other.txt"
    other.write_text("the queen sees the sea. " * 40)
    assert json.loads(said(capsys, "eval", runs[0], other, "--json"))["loss"] > 0


def test_eval_says_why_another_text_has_no_bits_per_byte(tmp_path, small_text, capsys):
    settings = [*SMALL[2:], "--tokenizer", "word", "--steps", 2, "--no-report", "--out", tmp_path / "words"]
    said(capsys, "train", small_text, *settings)
    assert "bits per byte" in said(capsys, "eval", tmp_path / "words")
    (tmp_path / "other.txt").write_text("the queen  sees\tthe sea. " * 40)
    found = json.loads(said(capsys, "eval", tmp_path / "words", tmp_path / "other.txt", "--json"))
    assert found["bits_per_byte"] is None and "word_perplexity" not in found
    out = said(capsys, "eval", tmp_path / "words", tmp_path / "other.txt")
    assert "bits per byte: none; the tokenizer drops some of the text" in " ".join(out.split())


def test_embed_gives_pooled_or_token_vectors_of_a_layer(runs, capsys):
    pooled = json.loads(said(capsys, "embed", runs[0], "the cat", "a dog", "--json"))
    (name,) = pooled["outputs"][0]["vectors"]
    assert name == "norm_f" and len(pooled["outputs"][0]["vectors"][name]) == 32
    tokens = json.loads(said(capsys, "embed", runs[0], "the cat", "--per-token", "--layer", "all", "--json"))
    vectors = tokens["outputs"][0]["vectors"]
    assert list(vectors) == ["embed", "L0.resid_post", "L1.resid_post", "norm_f"]
    assert [len(v) for v in vectors.values()] == [7] * 4
    assert "cos 2" in said(capsys, "embed", runs[0], "the cat", "a dog")
    assert cli.main(["embed", str(runs[0]), "x", "--layer", "9"]) == 2


def test_show_opens_with_answers_then_every_matrix(runs, capsys):
    out = said(capsys, "show", runs[0], "--all")
    assert out.index("?") < out.index("drift at step")
    for address in ("W_E", "L0.W_Q", "L1.W_out", "norm_f.gain", "W_U"):
        assert re.search(rf"^{re.escape(address)} ", out, flags=re.M)
    shown = json.loads(said(capsys, "show", runs[0], "--json"))
    assert shown["answers"] and shown["matrices"]["L0.W_Q"]["drift"] > 0
    assert "norm at step" in said(capsys, "show", runs[0], "--measure", "norm")
    assert cli.main(["show", str(runs[0]), "--measure", "drfit"]) == 2
    assert "'drift'" in capsys.readouterr().err


def test_show_a_matrix_has_its_measures_and_every_weight(runs, capsys):
    out = said(capsys, "show", runs[0], "L0.W_Q")
    assert "32 x 32" in out and "drift" in out and "every weight" in out
    assert "at step 0" in said(capsys, "show", runs[0], "L0.W_Q", "--at", 0)
    head = json.loads(said(capsys, "show", runs[0], "L0.H1.W_Q", "--json"))
    assert head["shape"] == [32, 16]
    assert cli.main(["show", str(runs[0]), "L0.W_Q", "--at", "7777"]) == 2


def test_show_a_token_row_before_and_after_with_neighbours(runs, capsys):
    out = said(capsys, "show", runs[0], "W_E[t]")
    assert "before" in out and "after" in out and "Nearest rows" in out and "it occurs" in out
    row = json.loads(said(capsys, "show", runs[0], "W_E[t]", "--json"))
    assert len(row["before"]) == len(row["after"]) == 32 and row["drift"] > 0
    assert row["neighbours"]["after"][0]["token"]
    assert cli.main(["show", str(runs[0]), "W_E[nothing]"]) == 2


def test_show_a_circuit_says_what_it_leaves_out(runs, capsys):
    out = said(capsys, "show", runs[0], "L0.H1.QK")
    assert "rank at most 16" in out and "normalised" in out
    assert len(json.loads(said(capsys, "show", runs[0], "L0.H1.OV", "--json"))["singular_values"]) == 16


def test_show_text_gives_every_head_and_one_activation(runs, capsys):
    shown = json.loads(said(capsys, "show", runs[0], "--text", "the cat", "--json"))
    assert len(shown["tokens"]) == 7 and len(shown["heads"]) == 4
    assert all(sum(row) == pytest.approx(1, abs=1e-5) for head in shown["heads"] for row in head["pattern"])
    assert "uniform attention" in said(capsys, "show", runs[0], "--text", "the cat")
    assert "query" in said(capsys, "show", runs[0], "L1.H0.pattern", "--text", "the cat")
    q = json.loads(said(capsys, "show", runs[0], "L0.H1.q", "--text", "the cat", "--json"))
    assert (len(q["values"]), len(q["values"][0])) == (7, 16)
    x = json.loads(said(capsys, "show", runs[0], "L0.x", "--text", "the cat", "--json"))
    assert len(x["values"][0]) == 32


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["L0.H1.q"], "--text"),
        (["L0.H9.q", "--text", "a"], "heads 0 to 1"),
        (["L0.pattern", "--text", "a"], "L0.H0.pattern"),
        (["L0.W_Q", "--text", "a"], "A matrix is shown without --text"),
        (["L0.resid_pst", "--text", "a"], "resid_post"),
        (["--text", ""], "0 tokens"),
        (["--text", "a" * 99], "1 to 32"),
        (["--text", "a", "--at", "13"], "steps with weights: 0"),
        (["--text", "a", "--at", "0..13"], "steps with weights: 0"),
        (["--text", "a", "--at", "0..3"], "kept one set of weights near steps 0 and 3; kept: 0, 8, 12"),
        (["--at", "0..3"], "add --text"),
        (["--at", "5..3"], "two steps as"),
        (["L0.W_in", "--text", "a", "--at", "0..12"], "W_Q"),
        (["L0.H7.W_Q", "--text", "a", "--at", "0..12"], "heads 0 to 1"),
    ],
)
def test_a_wrong_question_to_show_says_what_to_ask(runs, words, part, capsys):
    assert cli.main(["show", str(runs[0]), *words]) == 2
    assert part in capsys.readouterr().err


def test_step_says_what_would_move_and_what_it_buys(runs, capsys):
    out = said(capsys, "step", runs[0], "the cat sees a dog at home")
    assert (
        "first-order estimate" in out and "cosine with -g" in out and "L0.resid_pre" in out and "rows pulled at" in out
    )
    found = json.loads(said(capsys, "step", runs[0], "the cat sees a dog", "--on", "L0.H1.W_[QK],W_E[t]", "--json"))
    assert {part["address"] for part in found["parts"]} == {"L0.H1.W_Q", "L0.H1.W_K", "W_E[t]"}
    assert found["descent"]["first_order"] == pytest.approx(-1e-3, rel=1e-9)
    assert found["descent"]["actual"] == pytest.approx(-1e-3, rel=0.2)
    assert found["optimizer"] == "muon" and -1 <= found["own"]["cosine"] <= 1
    assert sum(found["gradient_path"]["blocks"][0]["shares"].values()) == pytest.approx(1)
    shown = json.loads(said(capsys, "show", runs[0], "--text", "the cat", "--json"))
    assert [block["address"] for block in shown["gradient_path"]["blocks"]] == ["L0.resid_pre", "L1.resid_pre"]
    assert json.loads(said(capsys, "show", runs[0], "--text", "t", "--json"))["gradient_path"] is None


@pytest.mark.parametrize(
    ("words", "part"),
    [(["t"], "2 to 33"), (["t" * 40], "2 to 33"), (["the cat", "--on", "L0.W_X"], "L0.W_"), ([], "TEXT"),
     (["the cat", "--rate", "-1"], "above 0")],
)  # fmt: skip
def test_a_wrong_question_to_step_says_what_to_ask(runs, words, part, capsys):
    assert cli.main(["step", str(runs[0]), *words]) == 2
    assert part in capsys.readouterr().err


def test_show_says_what_moved_a_product(runs, capsys):
    out = said(capsys, "show", runs[0], "--text", "the cat sees", "--at", "0..12")
    assert "L1.scores" in out and "encodings" in out and "before QK-norm" in out
    found = json.loads(said(capsys, "show", runs[0], "L1.W_Q", "--text", "the cat", "--at", "0..12", "--json"))
    assert [product["address"] for product in found["products"]] == ["L1.q"]
    assert sum(found["products"][0]["shares"].values()) == pytest.approx(1)
    assert len(found["products"][0]["by_token"]["both"]) == 7 and len(found["products"][0]["by_head"]["both"]) == 2
    out = said(capsys, "show", runs[0], "L1.H1.W_K", "--text", "the cat", "--at", "0..12")
    assert "L1.H1.k" in out and "by token" in out


def test_show_text_at_a_step_runs_the_weights_of_that_step(runs, capsys):
    start, end = (
        json.loads(said(capsys, "show", runs[0], "L0.H0.pattern", "--text", "the cat", *at, "--json"))["values"]
        for at in (["--at", "0"], [])
    )
    kept = json.loads(said(capsys, "show", runs[0], "L0.H0.pattern", "--text", "the cat", "--at", "12", "--json"))
    assert start != end and kept["values"] == end
    assert json.loads(said(capsys, "show", runs[0], "--text", "the cat", "--at", "0", "--json"))["heads"]


def test_layers_are_measured_over_a_validation_text_shorter_than_the_context(small_text, tmp_path, capsys):
    (tmp_path / "short.txt").write_text("the cat sees a dog")
    words = ["--val", tmp_path / "short.txt", "--steps", 2, "--out", tmp_path / "r", "--no-report"]
    said(capsys, "train", small_text, *SMALL, *words)
    assert json.loads(said(capsys, "embed", tmp_path / "r", "--measures", "--json"))


def test_a_run_with_a_ledger_says_which_matrix_earned_the_loss(small_text, tmp_path, capsys):
    words = ["--steps", 6, "--set", "ledger.every=1,ledger.windows=2", "--out", tmp_path / "r", "--no-report"]
    said(capsys, "train", small_text, *SMALL, *words)
    out = said(capsys, "show", tmp_path / "r", "--all")
    assert "Which matrices lowered the loss?" in out and "account for it to within" in out
    rows = json.loads(said(capsys, "show", tmp_path / "r", "W_E", "--json"))
    earned = rows["measures"]["earned"]["value"]
    assert len(earned) == 6 and sum(rows["rows"]["earned"]) == pytest.approx(sum(earned), rel=1e-6)
    assert "earned, nats" in said(capsys, "show", tmp_path / "r", "W_U")
    assert "changed the loss of the probe batch" in said(capsys, "show", tmp_path / "r", "W_E[t]")


def test_embed_measures_every_layer_beside_its_baselines(runs, capsys):
    out = said(capsys, "embed", runs[0], "--measures")
    assert "random pairs" in out and "norm_f" in out and "step 0" in out
    found = json.loads(said(capsys, "embed", runs[0], "--measures", "--json"))
    embed = found["layers"][0]
    assert embed["layer"] == "embed" and embed["probe"] > 0.95 and embed["n_classes"] > 5
    assert embed["probe_control"] < 0.5 and embed["self_similarity"] == pytest.approx(1, abs=1e-5)
    assert len(found["step_0"]) == len(found["layers"])


def test_show_text_has_the_lens_and_a_row_its_history(runs, capsys):
    shown = json.loads(said(capsys, "show", runs[0], "--text", "the cat", "--json"))
    assert [layer["address"] for layer in shown["logit_lens"]] == ["embed", "L0.resid_post", "L1.resid_post"]
    assert shown["logit_lens"][-1]["kl"] == pytest.approx(0, abs=1e-12)
    shown = said(capsys, "show", runs[0], "--text", "the cat")
    assert "Logit lens" in shown and "at 'a', token 6 of 7." in shown, "the last is asked for, not read"
    row = json.loads(said(capsys, "show", runs[0], "W_E[t]", "--json"))
    assert [moment["step"] for moment in row["history"]] == [0, 8, 12]
    assert row["history"][-1]["drift"] == pytest.approx(row["drift"]) and row["earned"] is None
    assert "rows that moved most" in said(capsys, "show", runs[0], "W_E")


def test_a_row_of_an_output_matrix_is_counted_where_its_token_is_written(tmp_path, capsys):
    for side, lines in (("a", ["le chat", "le chien"]), ("b", ["the cat", "the dog"])):
        (tmp_path / f"text.{side}").write_text("\n".join(f"{lines[i % 2]} {i}" for i in range(60)) + "\n")
    settings = ["--task", "translate", "--tokenizer", "word", "--set", "tied=false", *SMALL[2:], "--steps", 1]
    pair = f"{tmp_path / 'text.a'}:{tmp_path / 'text.b'}"
    said(capsys, "train", pair, *settings, "--no-report", "--out", tmp_path / "run")
    rows = [json.loads(said(capsys, "show", tmp_path / "run", a, "--json")) for a in ("dec.W_E[the]", "W_U[the]")]
    assert rows[0]["count"] == rows[1]["count"] > 40
    table = json.loads(said(capsys, "show", tmp_path / "run", "W_U", "--json"))["rows"]
    assert table["count"][rows[1]["id"]] == rows[1]["count"]


def test_the_row_of_a_mark_is_not_called_never_met(tmp_path, small_text, capsys):
    settings = [*SMALL[2:], "--tokenizer", "word", "--task", "masked", "--steps", 2, "--no-report"]
    said(capsys, "train", small_text, *settings, "--out", tmp_path / "run")
    assert "[MASK]" not in said(capsys, "show", tmp_path / "run", "W_E")


def test_compare_names_what_differs_and_warns_about_seeds(runs, capsys):
    out = said(capsys, "compare", runs[0], runs[1])
    assert "seed" in out and "L0.QK" in out and "seeds differ" in out
    found = json.loads(said(capsys, "compare", runs[0], runs[1], "--json"))
    assert found["settings"] == {"seed": [1, 2]}
    distances = {row["address"]: row["distance"] for row in found["matrices"]}
    assert 1 < distances["W_E"] < 2
    same = json.loads(said(capsys, "compare", runs[0], runs[0], "--json"))
    assert {row["words"] for row in same["matrices"]} == {"identical"} and same["cautions"] == []


def test_many_runs_are_compared_with_the_first(runs, small_text, tmp_path, capsys):
    words = ["train", small_text, "--tokenizer", "word", *SMALL[2:], "--steps", "3", "--no-report", "--json"]
    said(capsys, *words, "--out", tmp_path / "words")
    three = (runs[0], runs[1], tmp_path / "words")
    found = json.loads(said(capsys, "compare", *three, "--json"))
    two = json.loads(said(capsys, "compare", *three[:2], "--json"))
    assert found["runs"] == [str(path) for path in three]
    assert found["settings"]["data.tokenizer"] == ["char", "char", "word"] and found["settings"]["seed"][:2] == [1, 2]
    assert "val_loss" not in found["figures"] and len(found["figures"]["bits_per_byte"]) == 3
    rows, pairs = ({row["address"]: row for row in one["matrices"]} for one in (found, two))
    assert "W_E" in pairs and "W_E" not in rows and "L0.W_Q" in rows
    for address, row in rows.items():
        assert row["norm"][:2] == pairs[address]["norm"] and row["distance"][0] == pairs[address]["distance"]
    assert [row["norm"][:2] for row in found["circuits"]] == [row["norm"] for row in two["circuits"]]
    assert any("tokenizers differ" in caution for caution in found["cautions"])
    out = said(capsys, "compare", *three)
    assert "least distance from 1" in out and out.count("d_vocab=") == 3


def test_losses_of_texts_are_compared_whatever_the_tokens(tmp_path, capsys):
    lines = [
        f"{label}\tthe {word} number {i} is here\n" for i in range(120) for label, word in (("a", "red"), ("b", "sea"))
    ]
    (tmp_path / "t.tsv").write_text("label\ttext\n" + "".join(lines))
    words = "--task classify --steps 2 --threads 1 --watch off --no-report --json --set".split()
    words += ["d_model=16,n_layers=1,n_heads=1,n_ctx=16", "--tokenizer"]
    for kind in ("word", "char"):
        said(capsys, "train", tmp_path / "t.tsv", *words, kind, "--out", tmp_path / kind)
    found = json.loads(said(capsys, "compare", tmp_path / "word", tmp_path / "char", "--json"))
    assert None not in found["figures"]["val_loss"] and None not in found["figures"]["accuracy"]
    assert found["cautions"] == [
        "The tokenizers differ, so rows of W_E are of different tokens and not compared.",
        "`val_loss` and `last_val_loss` are of attention alone;"
        " `stored_loss` is of the answers, with the linear model.",
    ]
    addresses = {row["address"] for row in found["matrices"]}
    assert "W_E" not in addresses and "W_cls" in addresses


def test_compare_knows_texts_by_their_bytes(tmp_path, small_text, capsys):
    words = "--tokenizer char --steps 2 --threads 1 --watch off --no-report --json --set".split()
    words += ["d_model=16,n_layers=1,n_heads=1,n_ctx=16"]
    text, copy = tmp_path / "a.txt", tmp_path / "b.txt"
    for path in (text, copy):
        path.write_text(small_text.read_text())
    said(capsys, "train", text, *words, "--out", tmp_path / "1")
    said(capsys, "train", copy, *words, "--out", tmp_path / "2")
    text.write_text(small_text.read_text()[::-1])
    said(capsys, "train", text, *words, "--out", tmp_path / "3")

    def cautions(a, b):
        found = json.loads(said(capsys, "compare", tmp_path / a, tmp_path / b, "--json"))["cautions"]
        return [line for line in found if "different texts" in line]

    assert cautions("1", "2") == [] and len(cautions("1", "3")) == 1


def test_report_is_written_where_asked(runs, tmp_path, capsys):
    out = said(capsys, "report", runs[0], "--out", tmp_path / "story.html", "--text", "the cat sees a dog")
    assert "story.html" in out
    assert (tmp_path / "story.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("report RUN --out HERE/no/such/x.html", "there is no folder HERE/no/such; type mkdir -p HERE/no/such"),
        ("report RUN --out HERE", "HERE is a folder; expected the name of a file"),
        ("report RUN --out HERE/file/x.html", "HERE/file is a file and no folder"),
        ("export RUN --out HERE/file/x", "HERE/file is a file and no folder"),
        ("export RUN --out HERE/gone/x", "HERE/gone is a link to nothing and no folder"),
        ("export RUN --out HERE/gone", "HERE/gone is there already; choose another --out"),
        ("export RUN --out HERE/dead/x", "nothing can be made in HERE/dead (Read-only file system); choose another"),
        ("report RUN --out HERE/dead/x.html", "nothing can be made in HERE/dead (Read-only file system)"),
        ("vectors HERE/file --out HERE/no/such/x.txt", "there is no folder HERE/no/such"),
    ],
)
def test_a_place_that_is_none_is_refused_before_the_work(words, expected, runs, tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_text("some words\n" * 100)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "dead").mkdir()

    def made(dir: Path) -> io.BytesIO:
        """As in a folder whose rights say yes to root, and its file system no."""
        if dir.name == "dead":
            raise OSError(errno.EROFS, "Read-only file system")
        return io.BytesIO()

    monkeypatch.setattr("qkv.folder.run_folder.tempfile.TemporaryFile", made)
    monkeypatch.setattr("qkv.views.report.report.read_report", lambda *given: pytest.fail("the report was begun"))
    monkeypatch.setattr("qkv.interop.exporting.find_family", lambda *given: pytest.fail("the export was begun"))
    before = sorted(tmp_path.rglob("*"))
    assert cli.main(words.replace("RUN", str(runs[0])).replace("HERE", str(tmp_path)).split()) == 2
    err = capsys.readouterr().err
    assert expected.replace("HERE", str(tmp_path)) in err and "Traceback" not in err and err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_suggested_command_quotes_a_path_with_spaces_and_stdin_may_begin_with_a_mark(
    runs, tmp_path, capsys, monkeypatch
):
    spaced = tmp_path / "my run"
    shutil.copytree(runs[0], spaced)
    for words, told in (
        (["predict"], "qkv predict '{}' 'the cat sat'"),
        (["show", "L0.x"], "qkv show '{}' L0.x --text"),
    ):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b""), encoding="latin-1"))
        assert cli.main([words[0], str(spaced), *words[1:]]) == 2
        assert told.format(spaced) in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\ufeffthe cat\r\n".encode()), encoding="latin-1"))
    assert json.loads(said(capsys, "embed", spaced, "--json"))["outputs"][0]["text"] == "the cat"


def test_doctor_says_what_there_is(capsys):
    found = json.loads(said(capsys, "doctor", "--json"))
    assert found["versions"]["torch"] and "cpu" in found["devices"] and found["precision"] in ("fp32", "bf16")
    assert "GFLOP/s" in said(capsys, "doctor")


def test_what_can_be_made_again_lies_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert api.cache_folder() == tmp_path / "caches" / "qkv"
    for ignored in ("", "caches", "../caches"):  # as the specification of these names says
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert api.cache_folder() == tmp_path / "home" / ".cache" / "qkv"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert api.cache_folder() == tmp_path / "home" / ".cache" / "qkv"


def test_a_damaged_run_is_a_sentence(runs, tmp_path, capsys):
    broken = tmp_path / "broken"
    shutil.copytree(runs[0], broken)
    (broken / "best.safetensors").write_bytes(b"not weights")
    (broken / "telemetry.sqlite").write_bytes(b"not a database" * 100)
    for words in (["eval", broken], ["predict", broken, "a"]):
        assert cli.main([str(w) for w in words]) == 2
        err = capsys.readouterr().err
        assert "Traceback" not in err and str(broken) in err
    assert cli.main(["show", str(broken)]) == 0  # it shows what is whole and names what is not
    told = "".join(capsys.readouterr())
    assert all(f"{name} is damaged" in told for name in ("best.safetensors", "telemetry.sqlite")), told


def test_a_task_without_positions_refuses_them_before_it_prints(tmp_path, capsys):
    table = "text\tlabel\n" + "".join(f"{'the cat' if i % 2 else 'a dog'} {i}\t{i % 2}\n" for i in range(60))
    (tmp_path / "a.tsv").write_text(table)
    settings = [*SMALL[2:], "--task", "classify", "--steps", 1, "--no-report", "--out", tmp_path / "run"]
    said(capsys, "train", tmp_path / "a.tsv", *settings)
    for form in ([], ["--json"]):
        assert cli.main(["eval", str(tmp_path / "run"), "--by-position", *form]) == 2
        assert capsys.readouterr().out == ""


def test_compare_sets_a_matrix_under_two_names_beside_the_two_that_it_was(small_text, tmp_path, capsys):
    small = ["--set", "d_model=16,n_layers=1,n_heads=2,n_ctx=16,batch_size=4", "--steps", "2", "--tokenizer", "char"]
    kinds = {"two": [], "one": ["--change", "L0.W_K=share(L0.W_Q)"], "tied": ["--set", "tied=true"]}
    for name, more in kinds.items():
        assert cli.main(["train", str(small_text), "--out", str(tmp_path / name), "--no-report", *small, *more]) == 0
    for other, second in (("one", "L0.W_K"), ("tied", "W_U")):
        capsys.readouterr()
        assert cli.main(["compare", str(tmp_path / "two"), str(tmp_path / other), "--json"]) == 0
        rows = {row["address"]: row for row in json.loads(capsys.readouterr().out)["matrices"]}
        assert all(row["words"] in ("", "identical") for row in rows.values()), rows
        a, b = (api.load(tmp_path / name).catalogue().view(second).double() for name in ("two", other))
        apart = float((a - b).norm() / ((a.norm() ** 2 + b.norm() ** 2) / 2).sqrt())
        assert rows[second]["distance"] == pytest.approx(apart)
    assert cli.main(["compare", str(tmp_path / "one"), str(tmp_path / "one"), "--json"]) == 0
    assert "L0.W_K" not in capsys.readouterr().out


def test_a_word_that_is_cut_is_told_how(small_text, tmp_path, capsys):
    small = ["--set", "d_model=16,n_layers=1,n_heads=2,n_ctx=16,batch_size=4", "--steps", "2", "--tokenizer", "char"]
    assert cli.main(["train", str(small_text), "--out", str(tmp_path / "run"), "--no-report", *small]) == 0
    for asked in (
        ["show", str(tmp_path / "run"), "W_E[the]"],
        ["eval", str(tmp_path / "run"), "--change", "W_E[the]=zero"],
    ):
        capsys.readouterr()
        assert cli.main(asked) == 2
        told = capsys.readouterr().err
        assert "cuts it into 3 tokens, each with a row of its own: W_E[t] W_E[h] W_E[e]" in told and "?." not in told
    run = api.load(tmp_path / "run")
    assert repr(run.matrix("L0.H0.OV")) == "FactoredMatrix(L0.H0.OV, [16, 16] of rank at most 8)"
    assert repr(run.history("L0.W_Q", "norm")) == "{'L0.W_Q': Series('L0.W_Q', 'norm', at 3 steps, 0 to 2)}"


def test_one_of_a_thing_is_told_in_the_singular(small_text, tmp_path, capsys):
    sizes = "d_model=16,n_layers=1,n_heads=1,n_ctx=16,batch_size=1"
    small = ["--set", sizes, "--steps", "1", "--tokenizer", "char", "--threads", "1", "--no-report"]
    assert cli.main(["train", str(small_text), "--out", str(tmp_path / "run"), *small]) == 0
    told = "".join(capsys.readouterr())
    for words in (
        "1 layer, d_model 16, 1 head,",
        "Up to 1 step, 1 window a step,",
        "on 1 thread.",
        "\n1 step, 16 tokens",
    ):
        assert words in told, words
    assert cli.main(["step", str(tmp_path / "run"), "t"]) == 2 and "has 1 token;" in capsys.readouterr().err
    assert "1 layer x 1 head" in repr(api.load(tmp_path / "run").attention("the"))


def test_what_a_ledger_alone_has_is_told_with_what_keeps_one(runs, capsys):
    run = api.load(runs[0])
    for measure in ("earned", "earned_rows", "row_gradient"):
        with pytest.raises(AddressError, match=rf"{measure} is of the ledger, .* --set ledger.every=1"):
            run.history("W_E", measure)
    assert cli.main(["show", str(runs[0]), "--measure", "earned"]) == 2
    assert "this run kept none; train it with --set ledger.every=1" in capsys.readouterr().err


def test_results_that_hold_tensors_are_a_line_each_at_a_prompt(runs):
    """They printed every number."""
    run, text = api.load(runs[0], weights="last"), "the day and the"
    path, change = run.gradient_path(text), run.what_moved(text, 0, 12)[0]
    shown = [path, path.rows, *path.blocks, change, run.step(text), *run.logit_lens(text)]
    for one in map(repr, shown):
        assert len(one) < 300 and "tensor" not in one and "\n" not in one, one
    assert re.match(r"GradientPath\(loss \d\.\d+; 2 blocks, \d+ rows of W_E; by sublayers crossed 0: ", repr(path))
    assert re.match(r"ProductChange\('L0.q', \[2, 15, 16\], changed by .* of its size: encodings ", repr(change))
