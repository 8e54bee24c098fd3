"""Which tokens a replicate learns from, and which it is scored on."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from qkv.studies.engine.assembly import parts_of
from qkv.studies.engine.design import Arm, Design, Scale, Slice, Text, Trial, cost
from qkv.studies.question import Ask, make_design
from qkv.studies.synthetic.streams import corpus

SCALE = Scale(d_model=8, n_layers=1, n_heads=1, n_ctx=16, batch_size=16, steps=100, val_tokens=8_192)


def parts(source: Path, text: Text, of: int = 1, val_tokens: int = 0, **more):
    return [
        [corpus(text, str(source), val_tokens, None, Slice(index=i, of=of, tunes=t, **more)) for t in (False, True)]
        for i in range(of)
    ]


def test_slices_are_disjoint_and_are_all_of_the_text(long_text):
    whole = corpus(Text(), str(long_text), 0, None)
    found = parts(long_text, Text(), of=5)
    assert np.array_equal(np.concatenate([report.train.ids for report, _ in found]), whole.train.ids)
    val = [tokens for report, tune in found for tokens in (report.val, tune.val)]
    assert np.array_equal(np.concatenate([tokens.ids for tokens in val]), whole.val.ids)
    assert sum(tokens.n_bytes for tokens in val) == pytest.approx(whole.val.n_bytes, abs=10)
    for report, tune in found:
        assert np.array_equal(report.train.ids, tune.train.ids) and report.tokenizer is whole.tokenizer
        assert len(report.val) == pytest.approx(2 * len(tune.val), abs=3)


def test_half_of_an_overlapping_slice_is_in_the_next(long_text):
    whole = corpus(Text(), str(long_text), 0, None).train.ids
    found = [report.train.ids for report, _ in parts(long_text, Text(), of=3, overlapping=True)]
    half = len(whole) // 4
    for i, ids in enumerate(found):
        assert len(ids) == pytest.approx(2 * half, abs=2) and np.array_equal(
            ids[:99], whole[i * len(whole) // 4 :][:99]
        )
    assert np.array_equal(found[0][len(whole) // 4 :][:99], found[1][:99])
    assert np.array_equal(found[2][-99:], whole[-99:])


def test_documents_of_a_slice_stay_apart(tmp_path):
    folder = tmp_path / "many"
    folder.mkdir()
    for i in range(40):
        (folder / f"{i:02d}.txt").write_text(f"{i} is the number of this text, which says no more. " * 20)
    whole = corpus(Text(), str(folder), 0, None).train
    (report, _), *_ = found = parts(folder, Text(), of=3)
    assert report.train.offsets[0] == 0 and report.train.offsets[-1] == len(report.train)
    starts, at = set(), 0
    for report, _ in found:
        starts |= {at + int(offset) for offset in report.train.offsets[1:-1]}
        at += len(report.train)
    assert starts | {len(found[0][0].train), len(found[0][0].train) + len(found[1][0].train)} >= set(
        whole.offsets[1:-1]
    )


def test_every_tokenizer_is_reported_on_the_same_bytes(long_text):
    texts = [
        Text(tokenizer=kind, vocab=vocab, settings=(("val_bytes", 8000),))
        for kind, vocab in (("char", 0), ("bpe", 300))
    ]
    reported = []
    for text in texts:
        ((report, tune),) = parts(long_text, text)
        reported.append(report.tokenizer.decode(report.val.ids))
        whole = corpus(dataclasses.replace(text, settings=()), str(long_text), 0, None).val.ids
        assert np.array_equal(tune.val.ids, whole[len(report.val) :])
    assert reported[0] == reported[1] and 7900 < len(reported[0]) <= 8000


def test_labelled_texts_are_tuned_on_every_third_that_is_held_out(labelled):
    text = Text(stream="labelled", tokenizer="word", vocab=60)
    whole = corpus(text, str(labelled), 0, None)
    ((report, tune),) = parts(labelled, text)
    assert report.train is tune.train is whole.train
    assert tune.val.texts == whole.val.texts[2::3] and len(report.val) + len(tune.val) == len(whole.val)
    for part in (report.val, tune.val):
        i = len(part) - 1
        (place,) = [n for n, each in enumerate(whole.val.texts) if each == part.texts[i]][-1:]
        assert np.array_equal(part.tokens.document(i), whole.val.tokens.document(place))


@pytest.mark.parametrize("task, settings", [("recall", (("keys", 8), ("values", 8))), ("modular", (("modulus", 23),))])
def test_tasks_made_by_a_rule_tune_on_examples_that_they_are_not_reported_on(task, settings):
    def windows(tunes: bool) -> set[tuple[int, ...]]:
        text, scale = Text(stream=task, settings=settings), dataclasses.replace(SCALE, n_ctx=16)
        trial = Trial(
            arm=Arm(name="a", what="", text="t", task=task), text=text, scale=scale, source="", source_sha256="made",
            lr=0.1, seed=1, software="x", slice=Slice(tunes=tunes),
        )  # fmt: skip
        made = corpus(text, "", 0, None, trial.slice)
        task_made = parts_of(trial, made).task
        sizes = parts_of(trial, made).config.model.sizes
        return {tuple(row) for batch in task_made.val_batches(made, sizes, 64) for row in batch.inputs.tolist()}

    report, tune = windows(False), windows(True)
    assert report and tune and not report & tune


def made(source: Path, scale: Scale = SCALE, *, replicates: int = 4, probes: tuple[str, ...] = (), **more) -> Design:
    arms = (Arm(name="a", what="", probes=probes), Arm(name="b", what="", changes=("W_E=freeze",)))
    return make_design(
        Ask(source=str(source), **more), study="t", scale=scale, arms=arms, replicates=replicates,
        contrasts=(cost("b - a", "", "b", "a", 0.1),),
    )  # fmt: skip


def test_as_many_slices_as_a_training_may_read_four_times(long_text):
    """100 steps of 16 windows of 16 are 25,600 tokens, so a slice has 6,400; scored on 2,048 it has 3,072 held out."""
    whole = corpus(Text(), str(long_text), 0, None)
    design = made(long_text)
    assert design.slices == min(16, len(whole.train) // 6400, len(whole.val) // 3072) >= 4 and not design.overlapping
    assert made(long_text, seeds=9).slices == design.slices, "more seeds add to the trainings that are there"
    longer = dataclasses.replace(SCALE, steps=int(100 * len(whole.train) / 6400 / 3.2), val_tokens=64)
    shared = made(long_text, longer)
    assert shared.overlapping and shared.slices == 5
    assert made(long_text, dataclasses.replace(longer, steps=2 * longer.steps)).slices == 1
    assert made(long_text, dataclasses.replace(SCALE, val_tokens=65_536)).slices == 1
    assert made(long_text, probes=("relatedness",)).slices == 1


def test_a_text_that_is_not_read_has_the_slices_that_it_had(long_text):
    ask = {"named": ("long", "abc"), "slices": (7, True)}
    arms = (Arm(name="a", what=""), Arm(name="b", what="", changes=("W_E=freeze",)))
    design = make_design(
        Ask(**ask), study="t", scale=SCALE, arms=arms, contrasts=(cost("b - a", "", "b", "a", 0.1),), replicates=8
    )
    assert design.over == "over seeds and 7 half-overlapping slices of the text"
