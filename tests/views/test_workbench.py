"""The workbench: what its list, curves and questions say is what the runs say; notes stay outside the runs."""

import base64
import importlib.util
import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import qkv
import qkv.telemetry.runs as runs
import qkv.views.workbench.server as server
from qkv import cli
from qkv.errors import DamagedFileError, UserError
from qkv.folder.run_folder import RunFolder
from qkv.telemetry import Store, Telemetry
from qkv.telemetry.notes import read_notes, write_note
from qkv.telemetry.own import read_own
from qkv.telemetry.runs import listed
from qkv.views.host import Host
from qkv.views.report.packed import to_json, wire
from qkv.views.workbench.board import board_of, curves_of, grid_of, row_of, sentence_of, write_board
from qkv.views.workbench.server import Watched, WorkbenchPage


def helper():
    spec = importlib.util.spec_from_file_location("many_runs", Path(__file__).with_name("many_runs.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


many_runs = helper()


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    place = tmp_path_factory.mktemp("source") / "one"
    many_runs.train_one(place)
    return place


@pytest.fixture(scope="module")
def folder(source, tmp_path_factory):
    """Twenty finished runs: five seeds of each of four rates."""
    place = tmp_path_factory.mktemp("many")
    many_runs.many(place, 20, [source])
    return place


@pytest.fixture
def copy(source, tmp_path):
    """A folder of one run, to be written into."""
    shutil.copytree(source, tmp_path / "runs" / "one")
    return tmp_path / "runs"


def numbers(packed):
    kinds = {"float32": "<f4", "int32": "<i4"}
    return np.frombuffer(base64.b64decode(packed.data), kinds[packed.dtype]).reshape(packed.shape)


def test_the_list_says_what_differs_and_which_runs_differ_only_in_the_seed(folder):
    board = board_of(folder, listed(folder), Host())
    assert set(board.differing) == {"seed", "training.optimizer.lr"}
    assert board.caution == ""
    sets = {}
    for run in board.runs:
        sets.setdefault(run.alike, set()).add(run.settings["training.optimizer.lr"])
    assert sorted(sets.values(), key=str) == [{"0.001"}, {"0.003"}, {"0.01"}, {"0.03"}]
    summary = json.loads((folder / "run-0003/manifest.json").read_text())["summary"]
    (run,) = [run for run in board.runs if run.name == "run-0003"]
    assert (run.loss, run.ngram, run.steps) == (summary["val_loss"], summary["baselines_nats"]["ngram"], 40)


def test_curves_are_those_of_the_telemetry_and_behind_a_step_only_what_is_new(source):
    with Telemetry(source / "telemetry.sqlite") as telemetry:
        steps, evaluations = telemetry.steps(), telemetry.evaluations()
    found = curves_of(source)
    np.testing.assert_array_equal(numbers(found["loss"].steps), steps.step)
    np.testing.assert_allclose(numbers(found["loss"].values), steps.loss, rtol=1e-6)
    np.testing.assert_allclose(numbers(found["val_loss"].values), [e.loss for e in evaluations], rtol=1e-6)
    new = curves_of(source, after=30)
    assert numbers(new["loss"].steps).tolist() == list(range(31, 41))


def test_a_long_curve_keeps_its_mean(copy):
    losses = np.random.default_rng(0).random(1001)
    os.remove(copy / "one/manifest.json")
    with Store(copy / "one/telemetry.sqlite") as store:
        for step, loss in enumerate(losses, 1):
            store.add_step(step, tokens=step, loss=float(loss), lr=0.1, grad_norm=1.0)
    points = curves_of(copy / "one")["loss"]
    steps, values = numbers(points.steps), numbers(points.values)
    assert len(steps) == 400 and steps[-1] == 1001
    sizes = np.diff([0, *steps])
    assert np.average(values, weights=sizes) == pytest.approx(losses.mean(), rel=1e-6)


def test_a_measure_a_row_and_a_sentence_are_the_run_s_own(source):
    run = qkv.load(source, weights="last")
    grid = grid_of(source, "drift")
    series = run.history("L0.W_Q", "drift")["L0.W_Q"]
    row = numbers(grid.points.values)[grid.addresses.index("L0.W_Q")]
    at = np.isin(series.step, numbers(grid.points.steps))
    np.testing.assert_allclose(row[np.isfinite(row)], series.value[at], rtol=1e-6)
    moved, start = run.matrix("W_E[t]"), run.matrix("W_E[t]", at=0)
    assert numbers(row_of(source, "W_E[t]").values)[-1] == pytest.approx(
        float((moved - start).norm() / start.norm()), rel=1e-4
    )
    points = sentence_of(source, "the cat sat")
    ids = qkv.load(source).tokenizer.encode("the cat sat")
    logits = run.model(torch.tensor([[int(i) for i in ids]]))[0, :-1].log_softmax(-1)
    nats = -logits[range(len(ids) - 1), [int(i) for i in ids[1:]]].mean()
    assert numbers(points.values)[-1] == pytest.approx(float(nats.detach()), rel=1e-4)
    with pytest.raises(UserError, match="no row of a token table"):
        row_of(source, "L0.W_Q")


def test_questions_are_checked_and_a_run_that_cannot_be_read_says_why(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "f")
    (tmp_path / "f/run-0001/telemetry.sqlite").write_bytes(b"nonsense")
    page = WorkbenchPage(tmp_path / "f")
    found = page.desk.answer("curves", {"runs": {"run-0000": -1, "run-0001": -1}})
    assert list(found.runs) == ["run-0000"] and "damaged" in found.left_out["run-0001"]
    assert len(wire(found)) > 100
    for name, question, said in (
        ("curves", {"runs": {"../../etc": -1}}, "there is no run"),
        ("grid", {"runs": ["run-0000"]}, "a question grid is an object with"),
        ("nothing", {}, "unknown question"),
        ("sentence", {"runs": ["run-0000"], "text": "a" * 20_001}, "20,001 characters"),
    ):
        with pytest.raises(UserError, match=said):
            page.desk.answer(name, question)


def test_other_tokenizers_are_said_and_not_compared(source, tmp_path):
    shutil.copytree(source, tmp_path / "runs/one")
    many_runs.train_one(tmp_path / "runs/words", tokenizer="word", steps=3)
    board = board_of(tmp_path / "runs", listed(tmp_path / "runs"), Host())
    assert (
        board.caution == "These runs have different tokenizers, so their losses are not comparable. Bits per byte are."
    )
    found = WorkbenchPage(tmp_path / "runs").desk.answer("sentence", {"runs": ["one", "words"], "text": "the cat"})
    assert list(found.runs) == ["one"] and "another tokenizer" in found.left_out["words"]


def test_notes_lie_beside_the_runs_and_change_none(copy):
    page = WorkbenchPage(copy)
    page.desk.answer("note", {"run": "one", "note": "good <b>", "starred": True})
    assert read_notes(copy)["one"].note == "good <b>"
    (row,) = page.payload().runs
    assert (row.note, row.starred) == ("good <b>", True)
    assert RunFolder(copy / "one").damaged_files() == {}
    page.desk.answer("note", {"run": "one", "note": "", "starred": False})
    assert read_notes(copy) == {}
    (copy / "notes.json").write_text('["my own"]')
    assert listed(copy)[0].note == ""
    with pytest.raises(UserError, match="does not hold notes that qkv wrote"):
        page.desk.answer("note", {"run": "one", "note": "x", "starred": False})
    assert (copy / "notes.json").read_text() == '["my own"]'


def test_notes_that_were_cut_off_are_not_written_over(copy):
    write_note(copy, "one", note="keep me")
    cut = (copy / "notes.json").read_bytes()[:-20]
    (copy / "notes.json").write_bytes(cut)
    with pytest.raises(UserError, match="does not hold notes that qkv wrote, or not whole"):
        write_note(copy, "one", starred=True)
    assert (copy / "notes.json").read_bytes() == cut


def test_own_numbers_appear_beside_ours_and_leave_the_run_whole(copy):
    run = qkv.load(copy / "one")
    run.log({"accuracy": 0.5}, step=10)
    run.log({"accuracy": np.float32(0.75), "other": float("nan")})
    steps, values = run.logged()["accuracy"]
    assert (steps.tolist(), values.tolist()) == ([10, 40], [0.5, 0.75])
    assert np.isnan(read_own(copy / "one")["other"][1]).all()
    run.log({"total_flos": 5e16, "ns": 1_790_000_000_000_000_000, "large": 1e300})
    assert [float(run.logged()[name][1][0]) for name in ("total_flos", "ns", "large")] == [5e16, 1.79e18, 1e300]
    found = curves_of(copy / "one")
    assert numbers(found["own.accuracy"].values).tolist() == [0.5, 0.75] and "own.other" not in found
    assert numbers(found["own.total_flos"].values) == np.float32(5e16) and len(numbers(found["own.large"].values)) == 1
    assert RunFolder(copy / "one").damaged_files() == {}
    for given, said in (({}, "numbers by name"), ({"a": "3"}, "expected a number"), ({1: 3}, "no name of a number")):
        with pytest.raises(UserError, match=said):
            run.log(given)
    with pytest.raises(UserError, match="from 0 up"):
        run.log({"a": 1}, step=-1)
    os.remove(copy / "one/own.jsonl")
    os.symlink("/etc/hostname", copy / "one/own.jsonl")
    with pytest.raises(DamagedFileError, match="leads out of the run"):
        run.log({"a": 1})


def test_a_look_reads_only_what_changed(copy, source, monkeypatch):
    read = []

    def counting(function):
        def counted(run):
            read.append(getattr(run, "path", run).name)
            return function(run)

        return counted

    monkeypatch.setattr(runs, "run_at", counting(runs.run_at))
    monkeypatch.setattr(server, "further", counting(runs.further))
    watched = Watched(copy)
    first = watched.look()
    assert read == ["one"] and watched.look() == first and read == ["one"]
    shutil.copytree(source, copy / "live", ignore=shutil.ignore_patterns("manifest.json"))
    with RunFolder.open(copy / "live", writing=True), Store(copy / "live/telemetry.sqlite", flush_seconds=0) as store:
        assert watched.look().live == (("live", 40),)
        watched.look()
        del read[:]
        assert watched.look().live == (("live", 40),) and read == []
        time.sleep(0.01)
        store.add_step(41, tokens=1, loss=1.0, lr=0.1, grad_norm=1.0)
        store.flush()
        assert watched.look().live == (("live", 41),) and read == ["live"]
        edition = watched.edition
    assert watched.look().live == () and watched.edition == edition + 1  # it ended without a manifest
    shutil.rmtree(copy / "live")
    watched.look()
    assert [run.path.name for run in watched.runs] == ["one"]


def test_the_file_holds_everything_it_shows(folder, tmp_path, capsys):
    assert cli.main(["report", str(folder), "--out", str(tmp_path / "w.html"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    page = (tmp_path / "w.html").read_text()
    assert said["bytes"] == len(page.encode()) and "run-0019" in page and "http-equiv" in page
    assert cli.main(["report", str(folder), "--text", "a"]) == 2
    assert "--text is of one; give a run" in capsys.readouterr().err
    with pytest.raises(UserError, match="is there already and is no page"):
        write_board(folder, folder / "run-0000/config.toml")


def test_the_list_says_of_which_edition_it_is(copy):
    page = WorkbenchPage(copy)
    assert page.payload().edition == page.pulse.edition
    shutil.copytree(copy / "one", copy / "two")
    assert page.payload().edition == page.pulse.edition + 1


def test_beside_is_refused_for_many_runs(folder, capsys):
    assert cli.main(["view", str(folder), "--beside", str(folder / "run-0000")]) == 2
    assert "holds many runs, and --beside compares two" in capsys.readouterr().err


# in a browser


@pytest.fixture(scope="module")
def port(folder, serving):
    yield from serving(folder)


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 380])
def test_no_complaint_no_overflow_no_serious_fault(look, port, width, scheme, faults, shot):
    page = look(f"http://127.0.0.1:{port}/", offline=False, width=width, scheme=scheme)
    page.wait_for_selector("#curves svg path")
    page.locator("#across").scroll_into_view_if_needed()
    page.wait_for_selector("#across svg path")
    shot(page, f"workbench-{width}-{scheme}")
    assert page.complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert faults(page) == []


@pytest.mark.browser
def test_the_list_is_filtered_sorted_and_grouped_and_curves_follow(look, port, folder):
    page = look(f"http://127.0.0.1:{port}/", offline=False, width=1440)
    page.wait_for_selector("#curves svg path")
    rows = page.locator("table.runs tbody tr:not(.group)")
    assert rows.count() == 20 and page.locator("table.runs input:checked").count() == 12
    page.get_by_label("Filter").fill("lr<=0.003 run-00")
    page.wait_for_function("document.querySelectorAll('table.runs tbody tr').length === 10")
    page.get_by_role("button", name="Draw all in the list").click()
    page.wait_for_function("document.querySelectorAll('#curves svg > g > path').length >= 10")
    page.get_by_role("button", name="loss", exact=True).click()
    losses = [float(row.locator("td").nth(2).inner_text()) for row in rows.all()]
    assert losses == sorted(losses)
    page.get_by_label("Group by").select_option("training.optimizer.lr")
    groups = page.locator("table.runs tr.group").all_inner_texts()
    assert [text.split(",")[0].strip() for text in groups] == ["lr=0.001", "lr=0.003"]
    told = page.locator("#curves .groups tbody tr", has_text="lr=0.001").locator("td").all_inner_texts()
    values = [one.loss for one in listed(folder) if one.settings["training.optimizer.lr"] == "0.001"]
    with Telemetry(folder / "run-0000/telemetry.sqlite") as telemetry:
        last, best = telemetry.evaluations()[-1].loss, telemetry.best_evaluation().loss
    assert float(told[2]) == pytest.approx(np.mean(values) * last / best, rel=2e-3)
    page.get_by_label("Filter").fill("sead=1")
    page.get_by_text("No setting that differs is called sead").wait_for()


@pytest.mark.browser
def test_values_are_read_with_the_keyboard_and_a_note_is_kept(look, copy, serving):
    for port in serving(copy):
        page = look(f"http://127.0.0.1:{port}/", offline=False)
        page.wait_for_selector("#curves svg circle, #curves svg path")
        page.locator("#curves input[type=range]").focus()
        page.keyboard.press("End")
        text = page.locator("#curves .under-cursor").inner_text()
        with Telemetry(copy / "one/telemetry.sqlite") as telemetry:
            loss = telemetry.evaluations()[-1].loss
        assert text.startswith("Step 40") and float(text.split()[-1]) == pytest.approx(loss, rel=1e-3)
        page.get_by_label("note on one").fill("seen")
        page.keyboard.press("Tab")
        page.get_by_label("star one").click()
        for _ in range(100):
            if read_notes(copy) and read_notes(copy)["one"].starred:
                break
            page.wait_for_timeout(50)
        assert read_notes(copy)["one"].note == "seen"


@pytest.mark.browser
def test_a_list_that_was_opened_in_the_background_is_that_of_now(look, copy, source, serving):
    from playwright.sync_api import expect

    for port in serving(copy):
        page = look("about:blank", offline=False, ready=False)
        page.add_init_script("Object.defineProperty(document, 'hidden', { get: () => !window.seen })")
        page.goto(f"http://127.0.0.1:{port}/")
        lead = page.locator("p.lead")
        expect(lead).to_contain_text("1 run. Losses are the lowest on validation data, in nats per token (of labeled")
        shutil.copytree(source, copy / "two")
        page.wait_for_timeout(2000)  # the server has seen it
        page.evaluate("window.seen = true; document.dispatchEvent(new Event('visibilitychange'))")
        expect(lead).to_contain_text("2 runs.", timeout=20_000)
        expect(page.locator("table.runs tbody tr")).to_have_count(2)
        page.close()


@pytest.mark.browser
def test_measures_of_a_run_are_read_again_when_it_has_gone_on(look, source, tmp_path, serving):
    from playwright.sync_api import expect

    folder = tmp_path / "runs"
    folder.mkdir()
    many_runs.train_one(folder / "one", steps=3, watch="off")
    for port in serving(folder):
        page = look(f"http://127.0.0.1:{port}/", offline=False)
        across = page.locator("#across")
        across.scroll_into_view_if_needed()
        expect(across).to_contain_text("No matrix of the newest runs has been measured.")
        shutil.copytree(source, folder / "live", ignore=shutil.ignore_patterns("manifest.json"))
        with RunFolder.open(folder / "live", writing=True), Store(folder / "live/telemetry.sqlite") as store:
            page.get_by_label("draw live").check(timeout=30_000)
            across.scroll_into_view_if_needed()
            across.locator("svg path").first.wait_for()
            expect(across.get_by_label("measure", exact=True)).to_have_value("drift")
            expect(page.locator("p.lead")).to_contain_text("2 runs, 1 in training.")
            store.add_step(41, tokens=1, loss=1.0, lr=0.1, grad_norm=1.0)
            store.add_values(41, "drift", ["L0.W_Q"], [9.0])
        expect(page.locator("p.lead")).to_contain_text("2 runs. ", timeout=20_000)
        page.wait_for_timeout(500)
        across.locator("input[type=range]").focus()
        page.keyboard.press("End")
        expect(across.locator(".under-cursor")).to_contain_text("Step 41")
        assert page.complaints == []
        page.close()


@pytest.mark.browser
def test_what_was_pressed_in_the_list_keeps_the_focus(look, copy, serving):
    for port in serving(copy):
        page = look(f"http://127.0.0.1:{port}/", offline=False)
        page.get_by_role("button", name="loss", exact=True).focus()
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.textContent") == "loss"
        page.evaluate("document.querySelector('table.runs').id = 'old'")
        page.get_by_label("star one").focus()
        page.keyboard.press("Enter")
        page.locator("table.runs:not(#old)").wait_for(timeout=20_000)
        assert page.evaluate("document.activeElement.ariaLabel") == "star one"
        page.close()


@pytest.mark.browser
def test_statistics_are_those_of_scipy(look, port):
    from scipy import stats

    page = look(f"http://127.0.0.1:{port}/", offline=False)
    for n in (2, 5, 20, 21, 22, 60):
        values = np.random.default_rng(n).normal(size=n).tolist()
        found = page.evaluate("async (v) => (await import('/static/groups.js')).summary(v)", values)
        low, high = stats.t.interval(0.95, n - 1, np.mean(values), stats.sem(values))
        assert (found["low"], found["high"]) == pytest.approx((low, high), abs=1e-4 * (high - low))


@pytest.mark.browser
def test_the_file_works_offline(look, folder, tmp_path):
    page = look(write_board(folder, tmp_path / "w.html"), width=380)
    assert page.locator("#curves svg path").count() > 10
    page.locator("#across").scroll_into_view_if_needed()
    page.wait_for_selector("#across svg path")
    assert page.complaints == [] and len(page.asked) == 1
    assert page.get_by_label("note on run-0000").count() == 0


@pytest.mark.browser
def test_a_run_that_trains_grows_on_the_page(look, source, tmp_path, serving):
    shutil.copytree(source, tmp_path / "runs/live", ignore=shutil.ignore_patterns("manifest.json"))
    with RunFolder.open(tmp_path / "runs/live", writing=True):
        for port in serving(tmp_path / "runs"):
            page = look(f"http://127.0.0.1:{port}/", offline=False)
            page.get_by_label("what is drawn").select_option(label="training loss of each batch")
            assert "in training" in page.locator(".lead").inner_text()
            with Store(tmp_path / "runs/live/telemetry.sqlite", flush_seconds=0) as store:
                for step in range(41, 61):
                    store.add_step(step, tokens=step, loss=0.123, lr=0.1, grad_norm=1.0)
                store.flush()
                page.get_by_text("Step 60").first.wait_for(timeout=30_000)
            text = page.locator("#curves .under-cursor").inner_text()
            assert float(text.split()[-1]) == pytest.approx(0.123)


def test_to_json_of_a_board_is_plain(folder):
    board = to_json(board_of(folder, listed(folder), Host()))
    assert json.loads(json.dumps(board, allow_nan=False)) == board
