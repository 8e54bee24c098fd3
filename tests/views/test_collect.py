"""Sections of a page from telemetry: what is drawn is read, and a long run is not read whole for it."""

import itertools
import json
import sqlite3
import tracemalloc

import numpy as np
import pytest

import qkv
from qkv.telemetry import RUN_ARM, Store, Telemetry
from qkv.views.report.page_sections import Sections
from qkv.views.sections.header import seconds
from qkv.views.sections.loss import _thin, loss_section


@pytest.mark.parametrize(
    "missing", [(), (5_000,), (1,), tuple(range(60_000, 70_001))], ids=["none", "one", "first", "many"]
)
def test_a_long_curve_is_thinned_without_reading_all_of_it(tmp_path, missing):
    n, left_out = 200_000, set(missing)
    path = tmp_path / "telemetry.sqlite"
    with Store(path):
        pass
    with sqlite3.connect(path) as connection:
        rows = ((RUN_ARM, s, s * 64, 1 / s, 0.1, None) for s in range(1, n + 1) if s not in left_out)
        connection.executemany(
            "INSERT INTO steps (arm, step, tokens, loss, lr, grad_norm) VALUES (?, ?, ?, ?, ?, ?)", rows
        )
    connection.close()
    with Telemetry(path) as telemetry:
        there = np.array([s for s in range(1, n + 1) if s not in left_out])
        assert telemetry.updates() == (len(there), there[0], n)
        expected, words = _thin(n - there[0] + 1)
        expected = there[0] + expected
        if is_read_whole := bool(left_out & set(expected.tolist())):
            expected, words = _thin(len(there))
            expected = there[expected]
        tracemalloc.start()
        section = loss_section(telemetry, (), {})
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert section.train_steps == tuple(expected.tolist()) and section.thinned == words
        assert section.train == tuple(float(f"{1 / s:.6g}") for s in section.train_steps)
        if not is_read_whole:
            assert peak < 2e6  # all of it would be 16 MB and more


@pytest.mark.parametrize("read", [lambda t: loss_section(t, (), {}), lambda t: seconds(t, {}), Telemetry.tokens_seen])
def test_what_a_page_reads_again_does_not_grow_with_the_updates(tmp_path, read):
    efforts = []
    for n in (4_000, 64_000):
        path = tmp_path / f"{n}.sqlite"
        Store(path).close()
        with sqlite3.connect(path) as connection:
            connection.executemany(
                "INSERT INTO steps VALUES (0, ?, 64, 1.0, 0.1, 1.0)", ((s,) for s in range(1, n + 1))
            )
            connection.executemany(
                "INSERT INTO clock VALUES (0, ?, ?, 9.0, 0.0)", ((s, s / 4) for s in range(1, n + 1))
            )
        connection.close()
        with Telemetry(path) as telemetry:
            asked = itertools.count()
            telemetry._connection.set_progress_handler(lambda asked=asked: next(asked) < 0, 10)
            assert read(telemetry) is not None
            efforts.append(next(asked))
    assert efforts[1] < 1.5 * efforts[0] + 50, efforts
    assert seconds(None, {}) is None


def test_the_seconds_of_a_run_that_trains_are_the_clocks_last(tmp_path):
    with Store(tmp_path / "telemetry.sqlite") as store:
        for step in (1, 8, 3):
            store.add_clock(step, step / 4, tokens_per_second=9.0)
    with Telemetry(tmp_path / "telemetry.sqlite") as telemetry:
        assert seconds(telemetry, {}) == 2.0 and seconds(telemetry, {"summary": {"train_seconds": 3}}) == 3


def test_a_run_without_updates_has_no_curve(tmp_path):
    Store(tmp_path / "telemetry.sqlite").close()
    with Telemetry(tmp_path / "telemetry.sqlite") as telemetry:
        assert telemetry.updates() == (0, 0, 0) and telemetry.ends() == (0, 0)
        assert seconds(telemetry, {}) is None and loss_section(telemetry, (), {}) is None


def test_bits_per_byte_of_every_loss_charge_what_the_tokenizer_loses(tmp_path):
    text = tmp_path / "words.txt"
    text.write_text("the cat  sees a dog, and the old dog sees nothing \n" * 60 + "a zebra sleeps\n" * 20, "utf-8")
    sizes = {"d_model": 8, "n_layers": 1, "n_heads": 1, "n_ctx": 16, "batch_size": 2}
    asked = {"tokenizer": "word", "vocab": 12, "steps": 2, "threads": 1, "precision": "fp32", "report": False}
    run = qkv.train(text, out=tmp_path / "run", set=sizes, **asked)
    with Sections(run.path) as sections:
        section = sections.loss()
    corpus = run.corpus()
    in_bits = lambda nats: nats * section.bits_per_byte_of_nat + section.bits_per_byte_lost  # noqa: E731
    assert corpus.charge_nats > 0 and in_bits(section.best) == pytest.approx(section.best_bits_per_byte)
    lines = {line.name: line for line in section.baselines if line.name != "xz"}
    assert lines.keys() >= {"uniform", "unigram", "bigram", "ngram"}
    for line in lines.values():
        assert line.bits_per_byte == pytest.approx(in_bits(line.nats)) == pytest.approx(corpus.bits_per_byte(line.nats))


@pytest.mark.parametrize("task", ["answer", "regress"])
def test_where_a_model_chooses_among_no_fixed_number_there_is_no_uniform_guessing(task, tmp_path):
    rows = [{"question": f"Who {i}?", "text": f"Ada {i} ran.", "answer": "Ada"} for i in range(60)]
    rows = [{"text": f"one of {i}", "label": i / 4} for i in range(60)] if task == "regress" else rows
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    small = {"d_model": 8, "n_layers": 1, "batch_size": 4, "n_ctx": 32}
    run = qkv.train(tmp_path / "rows.jsonl", task=task, steps=2, out=tmp_path / "run", report=False, set=small)
    with Sections(run.path) as sections:
        loss, answers, facts = sections.loss(), sections.answers(), sections.run()
    assert loss is not None and "uniform" not in {line.name for line in loss.baselines}
    assert not any("(0 nats)" in str(one) for one in answers)
    if task == "answer":
        assert "to predict the answer, a piece of text." in facts.verdict
