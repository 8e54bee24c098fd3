"""The report file: one page that asks the network for nothing, tells what the folder holds, and makes nothing up."""

import base64
import json
import re
import shutil

import numpy as np
import pytest

import qkv
from qkv.errors import RunFolderError, UserError
from qkv.folder.run_folder import RunFolder, link, sha256_of
from qkv.telemetry import Telemetry
from qkv.views.report.report import read_report, write_report
from qkv.views.sections.header import head_facts, verdict
from qkv.views.sections.made import Fact

BAD = "</script><img src=x onerror=alert(1)><!--\u2028 '\"&"


def payload_of(path):
    text = re.search(
        r'<script type="application/json" id="qkv-payload">(.*?)</script>', path.read_text("utf-8"), re.DOTALL
    )
    return json.loads(text[1])


def floats(packed):
    return np.frombuffer(base64.b64decode(packed.data), "<f4").reshape(packed.shape)


def test_page_asks_the_network_for_nothing(run_folder, tmp_path):
    page = write_report(run_folder.folder, tmp_path / "r.html").read_text("utf-8")
    quote = r"""\s*["']?\s*"""
    for before in (r"(?:src|href)\s*=", r"url\(", "from", r"import\(", r"@import"):
        assert not re.search(f"{before}{quote}(?:https?:)?//", page), before
    assert not re.search(r"fetch\(\s*[\"'`]", page)
    assert "default-src 'none'" in page


def test_page_is_small(run_folder, tmp_path):
    assert write_report(run_folder.folder, tmp_path / "r.html").stat().st_size < 2_500_000


def test_the_same_folder_gives_the_same_bytes(run_folder, tmp_path):
    first, second = (write_report(run_folder.folder, tmp_path / name).read_bytes() for name in ("a.html", "b.html"))
    assert first == second


def test_names_and_texts_of_a_run_never_become_markup(make, tmp_path):
    run = make(sample_text=BAD, rare="<")
    path = write_report(run.folder, tmp_path / "r.html", texts=[BAD])
    assert "<img" not in path.read_text("utf-8")
    payload = payload_of(path)
    assert payload["samples"][-1]["text"] == BAD


@pytest.mark.parametrize("wrote", [" \n ", "the " * 200])
def test_the_sample_that_attention_is_shown_on_is_what_the_model_wrote(make, wrote):
    run = make(sample_text=wrote, n_ctx=8)
    report = read_report(run.folder)
    assert report.samples[-1].text in ("(an empty output)", f"{wrote[:600]} …")
    (text,) = report.attention
    assert "".join(text.tokens) == ("ROMEO:" + wrote)[:8] == "".join(report.forward.tokens)
    assert text.origin == f"the sample of step 1,000, the first 8 of {6 + len(wrote)} tokens"


def test_report_in_the_folder_is_known_to_its_manifest(make):
    run = make()
    path = write_report(run.folder)
    folder = RunFolder.open(run.folder)
    assert path == folder.report
    assert folder.read_manifest()["files"]["report.html"] == sha256_of(path)
    assert folder.damaged_files() == {}


def test_map_holds_the_recorded_numbers(run_folder):
    report = read_report(run_folder.folder)
    with Telemetry(run_folder.folder / "telemetry.sqlite") as telemetry:
        for measure, arm, steps, packed in [
            ("drift", 0, report.map.steps, report.map.values["drift"]),
            ("norm", 0, report.map.steps, report.map.values["norm"]),
            ("drift", 1, report.map.null_steps, report.map.null_values["drift"]),
        ]:
            grid = telemetry.grid(measure, arm=arm)
            columns = [list(grid.step).index(step) for step in steps]
            rows = [grid.addresses.index(row.address) for row in report.map.rows]
            np.testing.assert_array_equal(floats(packed), grid.value[np.ix_(rows, columns)].astype(np.float32))


def test_rows_compare_with_the_null_at_an_equal_step_only(run_folder):
    rows = read_report(run_folder.folder).rows
    assert rows.step == 1000 and rows.null_step == 64
    with Telemetry(run_folder.folder / "telemetry.sqlite") as telemetry:
        run, null = (telemetry.vectors("W_E", "row_drift", arm=arm) for arm in (0, 1))
    ids = np.frombuffer(base64.b64decode(rows.token_ids.data), "<i4")
    assert run_folder.tokenizer.special["[UNK]"] not in ids and len(ids) == rows.n_rows - 1
    for packed, recorded in ((rows.drift_then, run[64]), (rows.null_drift, null[64]), (rows.drift, run[1000])):
        np.testing.assert_array_equal(floats(packed), recorded[ids])


def test_rows_never_met_moved_by_exactly_nothing(run_folder):
    rows = read_report(run_folder.folder).rows
    unseen = [i for i, row in enumerate(rows.shown) if row.why == "unseen"]
    assert unseen and rows.largest_unseen_drift == 0.0 and rows.n_unseen == 1  # [UNK] is special, not unseen
    for i in unseen:
        assert floats(rows.start)[i].tobytes() == floats(rows.last)[i].tobytes()


def test_shown_rows_are_those_of_the_table_bit_for_bit(run_folder):
    rows = read_report(run_folder.folder).rows
    ids = [row.token_id for row in rows.shown]
    assert floats(rows.last).tobytes() == run_folder.last["W_E"][ids].tobytes()
    assert [row.token for row in rows.shown] == [run_folder.tokenizer.token(i) for i in ids]


def test_the_rows_that_moved_furthest_are_among_those_drawn(run_folder, monkeypatch):
    monkeypatch.setattr("qkv.views.sections.token_rows.N_POINTS", 5)
    rows = read_report(run_folder.folder).rows
    ids = np.frombuffer(base64.b64decode(rows.token_ids.data), "<i4")
    moved = {row.token_id for row in rows.shown if row.why == "moved"}
    assert moved and moved <= set(ids.tolist()) and len(ids) < rows.n_rows
    assert rows.drawn.startswith(f"{len(ids):,} of ") and "moved furthest" in rows.drawn


def test_attention_is_the_models_own(run_folder):
    import torch

    from qkv.models import build
    from qkv.models.matrices import Catalogue

    (text,) = read_report(run_folder.folder, ["the day and the night"]).attention
    model = build(run_folder.config.model, 1)
    Catalogue(model).load_state({name: torch.tensor(values) for name, values in run_folder.last.items()})
    ids = torch.as_tensor(run_folder.tokenizer.encode("the day and the night"))[None]
    _, record = model.eval().forward_recorded(ids)
    stored = (
        np.frombuffer(base64.b64decode(text.patterns.data), "u1").reshape(text.patterns.shape) * text.patterns.scale
    )
    rows, columns = np.tril_indices(ids.shape[1])
    assert text.steps[-1] == 1000 and len(text.steps) == 6
    for layer in range(3):
        expected = record[f"L{layer}.pattern"][0].detach().numpy()[:, rows, columns]
        np.testing.assert_allclose(stored[-1, layer], expected, atol=text.patterns.scale * 0.5001)


def test_a_long_text_is_cut_and_that_is_said(run_folder):
    (text,) = read_report(run_folder.folder, ["the day " * 40]).attention
    assert len(text.tokens) == 64 and "the first 64 of 320 tokens" in text.origin


def test_without_a_null_nothing_stands_in_for_it(make):
    report = read_report(make(null=False).folder)
    assert report.map.null_steps == () and report.map.null_values == {}
    assert report.rows.null_drift is None and report.rows.null_step is None


def test_the_line_under_the_title_leaves_the_loss_to_the_first_answer():
    said = verdict("the class of text", 20, validated=True)
    assert said == "Trained for 20 updates to predict the class of text."
    said = verdict("the class of text", 20, validated=False, finished=False)
    assert said == "Trained for 20 updates so far to predict the class of text. It has no validation loss yet."
    said = verdict("the next token of text", None, validated=False)
    assert said == "Not trained yet. It predicts the next token of text."


@pytest.mark.parametrize(("task", "label"), [("image", "images"), ("causal", "text")])
def test_the_head_names_what_was_read(task, label):
    assert head_facts({"task": task}, {"data": {"name": "set"}}, "", None)[0] == Fact(label=label, value="set")


def test_without_telemetry_there_are_still_the_weights(make):
    report = read_report(make(telemetry=False).folder)
    assert report.map is None and report.loss is None and report.samples == ()
    assert report.matrices is not None and "map" in report.missing and "attention" in report.missing
    assert report.rows is not None and report.rows.counts is None


@pytest.mark.parametrize("kept", [3000, 0])
def test_a_damaged_history_is_told_on_the_page_and_none_of_it_is_shown(make, tmp_path, kept):
    run = make()
    history = run.folder / "telemetry.sqlite"
    history.write_bytes(history.read_bytes()[:kept])
    payload = payload_of(write_report(run.folder, tmp_path / "r.html"))
    (said,) = payload["damaged"]
    assert f"{history} is damaged: its bytes are not those that were written" in said
    assert payload["missing"]["map"].endswith("telemetry.sqlite is damaged.")
    assert payload["loss"] is None and payload["map"] is None and payload["matrices"] is not None


def spoil(path):
    """Turn one bit of the last byte over."""
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 0x40]))


def test_of_damaged_files_a_page_says_so_and_shows_the_others(make, tmp_path):
    run = make()
    assert read_report(run.folder).damaged == ()
    spoiled = [run.folder / "model.safetensors", run.folder / "tokenizer.json"]
    for path in spoiled:
        spoil(path)
    report = read_report(run.folder)
    assert [path.name in said for path, said in zip(spoiled, sorted(report.damaged), strict=True)] == [True, True]
    assert report.matrices.steps[-1] == 1000  # of the checkpoint, which is whole
    assert report.rows is None and report.map is not None


@pytest.mark.browser
def test_what_is_not_whole_stands_above_the_sections(look, make, tmp_path):
    run = make()
    path = run.folder / "telemetry.sqlite"
    spoil(path)
    page = look(write_report(run.folder, tmp_path / "r.html"))
    assert page.locator("main > p.damaged").inner_text().startswith(f"Not whole: {path} is damaged")
    assert page.locator("#matrices svg, #matrices canvas").count() and page.complaints == []


def test_a_run_that_has_just_begun_is_not_taken_for_one_that_was_not_watched(make):
    folder = make(telemetry=False).folder
    (folder / "manifest.json").unlink()
    assert "measured yet" in read_report(folder).missing["map"]
    text = (folder / "config.toml").read_text("utf-8")
    (folder / "config.toml").write_text(text.replace('watch = "light"', 'watch = "off"'), "utf-8")
    assert "--watch off" in read_report(folder).missing["map"]


def test_a_folder_with_nothing_but_its_configuration_is_a_page_too(make, tmp_path):
    run = make(telemetry=False, snapshots=False)
    for name in ("model.safetensors", "best.safetensors", "tokenizer.json", "manifest.json"):
        (run.folder / name).unlink()
    payload = payload_of(write_report(run.folder, tmp_path / "r.html"))
    assert set(payload["missing"]) == {"map", "matrices", "attention"}
    assert payload["run"]["n_parameters"] is None and payload["loss"] is None


def test_weights_of_a_run_that_was_killed_are_those_of_its_newest_checkpoint(make):
    run = make()
    (run.folder / "manifest.json").unlink()
    shutil.rmtree(run.folder / "checkpoints" / "step-00001000")
    link(run.folder / "checkpoints" / "step-00000256" / "model.safetensors", run.folder / "model.safetensors")
    report = read_report(run.folder)
    assert report.run.n_steps == 1000  # updates that were written down
    assert (
        report.matrices.steps[-1] == report.words.steps[-1] == report.kept[-1] == report.attention[0].steps[-1] == 256
    )


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunFolderError):
        write_report(tmp_path / "nothing")


@pytest.mark.parametrize("text", ["", "a", "a" * 200_000], ids=["none", "one token", "too long"])
def test_a_text_that_cannot_be_shown_is_refused_and_nothing_is_written(run_folder, tmp_path, text):
    with pytest.raises(UserError, match="the text has"):
        write_report(run_folder.folder, tmp_path / "r.html", texts=["the day and the night", text])
    assert not (tmp_path / "r.html").exists()


def test_a_place_that_cannot_be_written_is_a_clear_error(run_folder, tmp_path):
    with pytest.raises(UserError, match="there is no folder"):
        write_report(run_folder.folder, tmp_path / "missing" / "r.html")


def test_a_file_that_is_no_page_is_never_written_over(run_folder, tmp_path):
    before = (run_folder.folder / "config.toml").read_bytes()
    with pytest.raises(UserError, match="is there already and is no page"):
        write_report(run_folder.folder, run_folder.folder / "config.toml")
    assert (run_folder.folder / "config.toml").read_bytes() == before
    for _ in range(2):  # a page of before is
        assert write_report(run_folder.folder, tmp_path / "r.html").is_file()


def test_home_folder_is_not_told(run_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/data")
    monkeypatch.setenv("USERPROFILE", "/data")
    page = write_report(run_folder.folder, tmp_path / "r.html").read_text("utf-8")
    assert "/data/shakespeare.txt" not in page and "~/shakespeare.txt" in page


def test_answers_come_from_the_reading_in_its_order(run_folder):
    from qkv.inspection.answers.reading import read

    answers = read(run_folder.folder)
    notes = read_report(run_folder.folder).answers
    assert [note.key for note in notes] == [answer.key for answer in answers]
    assert {"embeddings", "matrices", "loss", "samples", "order"} <= {note.key for note in notes}
    for note, answer in zip(notes, answers, strict=True):
        assert (note.question, note.sentence, note.null) == (answer.question, answer.sentence, answer.null)
        assert {item.label: item.value for item in note.evidence} == answer.numbers


def test_the_order_of_moving_is_the_one_that_the_answer_names(run_folder):
    report = read_report(run_folder.folder)
    order = next(note for note in report.answers if note.key == "order")
    halves = {f"half-way step of {note.kind}": note.half for note in report.map.moving}
    assert {item.label: item.value for item in order.evidence} == halves


def test_a_model_without_layers_has_a_report_that_says_so(small_text, tmp_path):
    sizes = {"d_model": 16, "n_layers": 0, "n_heads": 2, "n_ctx": 16, "batch_size": 4}
    run = qkv.train(small_text, steps=2, vocab=300, out=tmp_path / "run", set=sizes)
    report = read_report(run.path)
    assert "no layers (n_layers=0)" in report.missing["attention"] and report.loss is not None
    assert (run.path / "report.html").is_file()
