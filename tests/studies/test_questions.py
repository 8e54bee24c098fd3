"""Every question: its designs can be made and every arm of them fits; streams and probes against what is known."""

import dataclasses
import json
import math
import re
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from qkv.data.corpus import joined_hash
from qkv.errors import ConfigError, SourceError
from qkv.installing import install
from qkv.randomness import generator
from qkv.studies.engine.assembly import parts_of
from qkv.studies.engine.design import Arm, Design, Grid, Scale, Text, Trial, cost
from qkv.studies.engine.estimate import _try, estimate
from qkv.studies.engine.training import TRAINERS, before, run_trial
from qkv.studies.probes.registry import PROBES
from qkv.studies.question import FULL_MINUTES, Ask
from qkv.studies.questions import find, questions
from qkv.studies.questions.calibrate import derive
from qkv.studies.synthetic import streams
from qkv.studies.verdict.judging import ON_THE_WAY

NAMES = tuple(questions())


def test_the_questions_stand_in_order_of_priority():
    assert NAMES[:4] == ("what-is-trained", "frozen-embeddings", "which-matrix", "collocation")


def test_an_unknown_study_shows_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'frozen-embeddings'"):
        find("frozen-embedings")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("quick", [True, False], ids=["quick", "full"])
def test_every_arm_of_a_question_fits_its_text_and_model(name, quick, long_text, kept):
    ask = Ask(source=str(long_text), quick=quick, cache=kept)
    design = find(name).design(ask)
    assert design.study == name and design.quick == quick
    for arm in design.arms:
        if arm.trainer == "inner study":
            continue  # tried below
        trial = design.trial(arm, 1, 0, source=str(long_text), report=True)
        sizes = {"d_model": 16, "n_heads": 1, "d_head": 0, "d_mlp": 0} if arm.changes or arm.tables else {}
        small = dataclasses.replace(trial.scale, **sizes)
        _try(dataclasses.replace(trial, scale=small), kept)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES[:4])
def test_the_main_question_of_a_full_study_fits_its_budget_with_room_to_spare(name, tinyshakespeare, kept):
    """By the study's own estimate, on this machine; a machine half as fast would still answer it.

    Whether all arms fit depends on the machine's speed, so it is printed and only a far excess fails: slow cores that
    others used as well have shown 370 minutes.
    """
    source = str(tinyshakespeare)
    design = find(name).design(Ask(source=source, cache=kept))
    found = estimate(design, source, kept, 2)
    minutes = found.minutes(design.replicates)
    main = found.minutes(design.replicates, found.primary)
    print(f"{name}: {len(design.arms)} arms, {minutes:.0f} minutes on two cores; the main question alone {main:.0f}")
    assert main <= minutes and design.grid.points >= 3
    assert main <= FULL_MINUTES / 2
    assert minutes <= 5 * FULL_MINUTES


def test_no_matrix_of_a_study_starts_at_zero():
    """So no arm can freeze one that does."""
    from qkv.models.start import START
    from qkv.presets import PRESETS
    from qkv.studies.engine.assembly import PRESET

    kinds = START[PRESETS[PRESET].layout.start]
    assert [kind for kind, draw in kinds.items() if draw.sentence == "0" and kind.startswith("W_")] == []


def _smaller(trial):
    """Of a study inside a training only two steps: it has a hundred trainings."""
    if trial.arm.trainer != "inner study":
        return trial
    return dataclasses.replace(trial, scale=dataclasses.replace(trial.scale, steps=2, val_tokens=64, d_model=4))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("quick", [True, False], ids=["quick", "full"])
def test_every_quantity_that_a_contrast_reads_is_measured(name, quick, long_text, kept):
    """One short training per set of probes: the names it gives are the names that contrasts read.

    All arms' measures are handed to what derives more of them, each twice, as if there were another replicate.
    """
    ask = Ask(source=str(long_text), quick=quick, cache=kept)
    design = find(name).design(ask)
    read = {(arm, q) for c in design.contrasts for _, arm, q in c.terms if q != "loss" and q not in ON_THE_WAY}
    measured = {}
    for arm in (arm for arm in design.arms if arm.name in {reader for reader, _ in read}):
        trial = design.trial(arm, 1, 0, source=str(long_text), report=True)
        scale = dataclasses.replace(trial.scale, steps=4, val_tokens=1024, evaluations=1, d_model=16)
        scale = dataclasses.replace(scale, n_heads=min(2, trial.scale.n_heads))
        measured[arm.name] = run_trial(_smaller(dataclasses.replace(trial, scale=scale)), kept)["measures"]
    derive = find(name).derive
    if derive is not None:
        more = derive([*measured.values(), *measured.values()])[: len(measured)]
        measured = {arm: {**row, **extra} for (arm, row), extra in zip(measured.items(), more, strict=True)}
    missing = [(arm, quantity) for arm, quantity in sorted(read) if quantity not in measured[arm]]
    assert not missing, f"not measured: {missing}"


def test_the_entropy_of_a_markov_source_is_that_of_its_long_run():
    matrix = streams.markov_matrix(6, 2.0, 0.1)
    assert matrix.sum(axis=1) == pytest.approx(np.ones(6))
    walk = streams._walk(matrix, 60_000, "test")
    counts = np.bincount(walk[:-1] * 6 + walk[1:], minlength=36).reshape(6, 6)
    rows = counts / counts.sum(axis=1, keepdims=True)
    seen = -(counts / counts.sum() * np.log(rows)).sum()
    assert seen == pytest.approx(streams.markov_entropy(matrix), abs=0.01)
    assert streams.markov_entropy(np.full((4, 4), 0.25)) == pytest.approx(math.log(4))


@pytest.mark.parametrize("task", ["causal", "masked"])
def test_who_knows_frequencies_alone_has_learned_nothing_beyond_them(finish, task):
    finished = finish(task)
    tokenizer, corpus = finished.corpus.tokenizer, finished.corpus
    never = set(tokenizer.special.values()) if task == "masked" else set()
    counts = Counter(corpus.train.ids.tolist())
    of_all = sum(counts[i] + 1 for i in range(tokenizer.d_vocab) if i not in never)
    batches = finished.parts.task.val_batches(corpus, finished.model.config.sizes, 8)
    nats = [-math.log((counts[i] + 1) / of_all) for batch in batches for i in batch.targets.tolist()]
    by_frequency = sum(nats) / len(nats)
    found = [PROBES["learned"](dataclasses.replace(finished, loss=loss)) for loss in (by_frequency, 1.0)]
    assert found[0]["beyond frequencies"] == pytest.approx(0.0, abs=1e-9)
    assert found[1]["beyond frequencies"] == pytest.approx(by_frequency - 1.0)


PAIRS = Text(
    stream="pairs",
    settings=(("pairs", 5), ("fillers", 20), ("choices", 4), ("tokens", 40_000), ("val_tokens", 2000)),
)


def test_the_two_by_two_is_what_it_says():
    made = streams.corpus(PAIRS, "", 0, None)
    ids, vocabulary = made.train.ids.astype(int), made.tokenizer.vocabulary
    counts = np.bincount(ids, minlength=made.tokenizer.d_vocab)
    words, places = [], {}
    for cell, members in streams.pair_words(5).items():
        places[cell] = [[vocabulary[streams.word(i)] for i in pair] for pair in members]
        words += [i for pair in places[cell] for i in pair]
    assert np.ptp(counts[words]) <= 1, "every word is met equally often, but for the frame that is cut off"
    follows = set(zip(ids[:-1].tolist(), ids[1:].tolist(), strict=True))
    for cell, members in places.items():
        for a, b in members:
            assert ((a, b) in follows or (b, a) in follows) == cell.together
            contexts = []
            for one, other in ((a, b), (b, a)):
                at = np.flatnonzero(ids == one)[1:-1]
                contexts.append({int(t) for i in at for t in (ids[i - 1], ids[i + 1])} - {other})
            stop = vocabulary[streams.word(5 * 8 + 40)]
            shared = (contexts[0] & contexts[1]) - {stop}
            assert bool(shared) == cell.shared
            if cell.shared:
                assert contexts[0] - {stop} == contexts[1] - {stop}


def scale(**more) -> Scale:
    made = {"d_model": 16, "n_layers": 1, "n_heads": 2, "n_ctx": 16, "batch_size": 8, "steps": 40, "val_tokens": 1024}
    return Scale(**(made | more))


def small_design(arms: tuple[Arm, ...], text: Text, s: Scale, source: str) -> Design:
    sha256 = Ask(source=source).corpus(text).sha256
    return Design(
        study="t", quick=True, source_name="s", source_sha256=sha256, texts=(("text", text),), scale=s, grid=Grid(),
        arms=arms, contrasts=(cost("c", "", arms[0].name, arms[0].name, 0.1),), replicates=2, software="x",
    )  # fmt: skip


def measure(arm: Arm, text: Text, source: str = "", **more) -> dict:
    return run_trial(small_trial(arm, text, source, **more), None)


def small_trial(arm: Arm, text: Text, source: str = "", **more) -> Trial:
    design = small_design((arm,), text, scale(**more), source)
    return design.trial(arm, 1, 0, source=source, report=True)


def test_the_contrastive_control_sees_collocation_and_the_untrained_model_none():
    trained = measure(
        Arm(name="a", what="", trainer="contrastive", lr=0.05, probes=("pairs",)), PAIRS, steps=150
    )["measures"]  # fmt: skip
    untrained = measure(Arm(name="a", what="", trainer="none", probes=("pairs",)), PAIRS)["measures"]
    assert trained["together cos(e, e)"] > 0.3
    assert abs(untrained["together cos(e, e)"]) < 0.25


def test_resets_measure_what_was_learned_and_leave_the_model_as_it_was(small_text):
    arm = Arm(name="a", what="", probes=("reset", "drift"))
    once = measure(arm, Text(), str(small_text))
    other = measure(dataclasses.replace(arm, probes=("drift", "reset")), Text(), str(small_text))
    assert once["measures"] == other["measures"]
    frozen = measure(dataclasses.replace(arm, changes=("W_E=freeze",)), Text(), str(small_text))
    assert frozen["frozen"] == ["W_E"] and once["frozen"] == []
    assert frozen["measures"]["reset W_E"] == 0.0 and frozen["measures"]["drift W_E"] == 0.0
    assert once["measures"]["drift W_E"] > 0.0 and once["measures"]["reset W_U"] > 0.1


def test_the_ledger_adds_up_to_the_fall_of_the_loss(small_text):
    row = measure(Arm(name="a", what="", lr=0.003, probes=("ledger",)), Text(), str(small_text), steps=42)["measures"]
    assert row["fall"] > 0.2 and row["earned all"] == pytest.approx(row["fall"], rel=0.01)
    frozen = Arm(name="a", what="", lr=0.003, changes=("W_E=freeze",), probes=("ledger",))
    assert measure(frozen, Text(), str(small_text), steps=42)["measures"]["earned W_E"] == 0.0


def test_rows_never_met_do_not_move_and_others_do(small_text):
    row = measure(Arm(name="a", what="", probes=("rows",)), Text(), str(small_text))["measures"]
    assert row["rows unseen"] >= 5 and row["unseen row drift"] == 0.0 and row["row drift"] > 0.0


def test_recall_batches_ask_for_what_was_told():
    from qkv.models.layout import Sizes
    from qkv.studies.synthetic.tasks import Recall

    text = Text(stream="recall", settings=(("keys", 12), ("values", 6)))
    made, task = streams.corpus(text, "", 0, None), Recall(keys=12, values=6)
    sizes = Sizes(d_vocab=made.tokenizer.d_vocab, d_model=8, n_layers=1, n_heads=1, n_ctx=32)
    batch = task.train_batch(made, sizes, 1, 0, np.arange(4))
    for row in range(4):
        window = batch.inputs[row].tolist()
        table = dict(zip(window[:16:2], window[1:16:2], strict=True))
        assert sorted(window[16::2]) == sorted(table)
        asked = batch.positions[row * 8 : row * 8 + 8] - 32 * row
        assert [table[window[i]] for i in asked] == batch.targets[row * 8 : row * 8 + 8].tolist()
    again = task.train_batch(made, sizes, 1, 0, np.arange(4))
    assert torch.equal(batch.inputs, again.inputs)
    assert not torch.equal(batch.inputs, task.train_batch(made, sizes, 1, 1, np.arange(4)).inputs)


def test_count_vectors_bring_substitutes_together(small_text):
    from qkv.studies.engine.initial_tables import ppmi

    ids = np.array([0, 2, 1, 3] * 300 + [0, 4, 1, 3] * 300)
    information = ppmi(ids, 6)
    assert np.array_equal(information, information.T) and (information[5] == 0).all()
    assert np.corrcoef(information[2], information[4])[0, 1] > 0.99
    row = measure(
        Arm(name="a", what="", changes=("W_E=freeze",), tables=(("W_E", "counts"),), probes=("drift",)),
        Text(), str(small_text),
    )  # fmt: skip
    assert row["measures"]["drift W_E"] == 0.0


@pytest.mark.parametrize("quick", [True, False], ids=["quick", "full"])
def test_a_frozen_table_is_compared_with_the_same_rows_trained(quick):
    """So that the cost of freezing is not also that of another start."""
    design = find("frozen-embeddings").design(Ask(named=("a text", "0" * 64), quick=quick))
    pairs = [c for c in design.contrasts if re.fullmatch(r"(.*)frozen - \1trained", c.name)]
    assert "small frozen - small trained" in [c.name for c in pairs]
    for contrast in pairs:
        frozen, trained = (design.arm(name) for name in contrast.arms)
        assert frozen.text == trained.text and frozen.layout == trained.layout and frozen.sizes == trained.sizes
        starts = [[c for c in arm.changes if "random" in c] for arm in (frozen, trained)]
        assert [c.replace(",train=true", "") for c in starts[1]] == starts[0], contrast.name
    assert {design.arm(f"small {which}").changes for which in ("trained", "frozen")} == {(), ("W_E=freeze",)}


def test_digits_are_the_same_every_time_and_held_out_ones_are_never_trained_on():
    made = streams.corpus(Text(stream="digits"), "", 0, None)
    assert made.shape == (1, 8, 8) and len(made.train) + len(made.val) == 1797 and len(made.val) == 359
    assert made.train.pixels.dtype == np.uint8 and made.train.pixels.max() == 255
    assert sorted(set(made.val.labels.tolist())) == list(range(10)) and made.classes[3] == "3"
    rows = np.concatenate([made.train.pixels, made.val.pixels]).reshape(1797, -1)
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn is in the extra study")
    theirs = np.rint(datasets.load_digits().data * (255 / 16)).astype(np.uint8)
    assert sorted(map(bytes, rows)) == sorted(map(bytes, theirs)), "each once, in one part or the other"
    streams._corpus.cache_clear()
    assert (streams.corpus(Text(stream="digits"), "", 0, None).val.pixels == made.val.pixels).all()


def test_digits_without_scikit_learn_say_what_to_type(monkeypatch):
    import sys

    from qkv.errors import MissingExtra

    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtra, match=re.escape(install("study"))):
        streams.STREAMS["digits"](Text(stream="digits"), "", None)


def test_a_model_that_knows_frequencies_alone_tells_nothing_and_digits_are_learned(small_text):
    guess = Arm(name="a", what="", task="image", trainer="none", changes=("W_cls=zero",), probes=("told", "accuracy"))
    row = measure(guess, Text(stream="digits"))
    assert row["loss"] == pytest.approx(math.log(10)) and row["measures"]["told"] == pytest.approx(0.0, abs=0.01)
    learned = Arm(name="a", what="", task="image", probes=("told", "accuracy", "roles"))
    row = measure(learned, Text(stream="digits"), steps=150, batch_size=32)
    assert row["measures"]["accuracy"] > 35 and 0.2 < row["measures"]["told"] < 1
    text = measure(
        Arm(name="a", what="", trainer="none", changes=("W_U=zero",), probes=("told",)), Text(), str(small_text)
    )
    ids = streams.corpus(Text(), str(small_text), 0, None).train.ids
    shares = np.bincount(ids)[np.unique(ids)] / len(ids)
    assert text["measures"]["told"] == pytest.approx(1 + text["loss"] / (shares * np.log(shares)).sum())


def test_less_of_a_text_is_trained_on_under_the_same_vocabulary(small_text):
    whole, part = (
        streams.corpus(Text(settings=settings), str(small_text), 0, None) for settings in ((), (("train_tokens", 500),))
    )
    assert len(part.train) == 500 and (part.train.ids == whole.train.ids[:500]).all()
    assert part.train.n_bytes == 500 and part.val is not None and len(part.val) == len(whole.val)
    assert part.tokenizer.vocabulary == whole.tokenizer.vocabulary
    more = streams.corpus(Text(settings=(("train_tokens", 10**6),)), str(small_text), 0, None)
    assert len(more.train) == len(whole.train)


def test_a_folder_whose_text_changed_is_read_anew_within_one_process(tmp_path):
    for text in ("abcd efgh " * 400, "ponm lkji " * 400):
        (tmp_path / "a.txt").write_text(text, encoding="utf-8")
        made = streams.corpus(Text(), str(tmp_path), 0, None)
        assert "".join(made.tokenizer.token(int(i)) for i in made.train.ids[:10]) == text[:10]


def test_a_validation_part_that_is_cut_keeps_its_documents(tmp_path):
    rows = [f"{i * 7919 % 9973} apples, {i * i % 997} pears" for i in range(600)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    whole, part = (streams.corpus(Text(), str(tmp_path / "rows.jsonl"), n, None).val for n in (0, 300))
    assert len(part) == 300 and (part.ids == whole.ids[:300]).all()
    assert part.offsets.tolist() == [*(int(at) for at in whole.offsets if at < 300), 300] and part.n_documents > 2


def test_a_table_whose_texts_say_how_they_were_split_is_not_taken_for_another(told_by_a_word, kept):
    arm = _cut(Arm(name="one", what="one", task="classify"), steps=1)
    trial = small_trial(arm, LABELLED, told_by_a_word, steps=1)
    own = streams.corpus(trial.text, trial.source, 0, None).sha256
    for sha256 in (own, joined_hash(own, "split 2")):
        run_trial(dataclasses.replace(trial, source_sha256=sha256), kept)
    with pytest.raises(SourceError, match="has changed since the study began"):
        run_trial(dataclasses.replace(trial, source_sha256="0" * 64), kept)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("quick", [True, False], ids=["quick", "full"])
def test_what_is_asked_of_recall_and_of_hidden_tokens_is_asked_of_models_that_learn_it(name, quick):
    """By what docs/decisions found: recall from Glorot's start and of few keys; masked models so too, or of short
    windows, or behind a contrast that asks whether they learned anything; no model without skip connections from
    N(0, 0.02)."""
    answered = ("frozen-embeddings", "collocation", "positions")  # the first two learned in their kept runs
    for labelled in (False, True):
        design = find(name).design(Ask(named=("a text", "0" * 64), quick=quick, labelled=labelled))
        asked = {gate for contrast in design.contrasts for gate in contrast.gates}
        for arm in design.arms:
            layout, trains = dict(arm.layout), arm.trainer != "none"
            if arm.task == "recall" and trains:
                assert dict(design.texts)[arm.text].settings == (("keys", 8), ("values", 8)) and layout["start"] in (
                    "xavier",
                    "recurrent",
                ), arm.name
            if arm.task == "masked" and trains and not quick and name not in answered:
                learns = layout.get("start") == "xavier" or f"learned ({arm.name})" in asked
                assert learns, arm.name
            if arm.name.startswith("skipless") and name == "which-matrix":
                assert layout["start"] == "xavier"


def test_no_finished_block_is_no_rate():
    assert derive([]) == []


@pytest.mark.parametrize("quick", [True, False], ids=["quick", "full"])
@pytest.mark.parametrize("n_letters", [65, 110, 257])
def test_an_lstm_has_as_many_parameters_as_the_attention_beside_it_and_the_contrast_tells_both(
    n_letters, quick, tmp_path, kept
):
    """Of as many letters as Shakespeare, Python's own documentation and Wikipedia have, with five special tokens.

    Each letter but the space is a word too.
    """
    from qkv.models.counting import n_parameters
    from qkv.studies.engine.assembly import config_of

    letters = [chr(i) for i in range(0x100, 0x100 + n_letters - 1)]
    drawn = generator("tests", "letters").integers(n_letters - 1, size=60_000)
    source = str(tmp_path / "letters.txt")
    (tmp_path / "letters.txt").write_text(" ".join([*letters, *(letters[i] for i in drawn)]), encoding="utf-8")
    design = find("attention-or-lstm").design(Ask(source=source, quick=quick, cache=kept))
    matched = [c for c in design.contrasts if c.name.endswith("attention")]
    matched = [c for c in matched if c.terms[0][2] == "loss"]
    assert len(matched) == (2 if quick else 5)
    for contrast in matched:
        counts = []
        for arm in map(design.arm, contrast.arms):
            trial = design.trial(arm, 1, 0, source=source, report=True)
            made = streams.corpus(trial.text, source, 0, kept)
            n_tokens = n_letters - (trial.text.tokenizer == "word")
            assert trial.text.stream != "text" or made.tokenizer.d_vocab == n_tokens + 5
            counts.append(n_parameters(config_of(trial, made).model))
            assert f"; {counts[-1]:,} parameters" in arm.what
        assert counts[0] == pytest.approx(counts[1], rel=0.005), contrast.name
        off = f"{100 * (counts[0] / counts[1] - 1):+.1f} %"
        assert f"as many parameters ({counts[0]:,} and {counts[1]:,}, {off})" in contrast.what
        for kind in ("attention", "LSTM"):
            assert {arm.layout for arm in design.arms if arm.name.endswith(kind)} == {design.arm(kind).layout}


@pytest.mark.parametrize("quick", [True, False], ids=["quick", "full"])
def test_tokenizers_get_as_many_operations_or_as_many_bytes_as_they_say(quick, long_text, kept):
    """Operations as torch counts them in a step of training; all are scored in bits per byte of the same bytes."""
    from qkv.recipe.forecast import _Count
    from qkv.studies.engine.assembly import config_of

    ask = Ask(source=str(long_text), quick=quick, cache=kept)
    design = find("tokenizers").design(ask)
    operations, n_bytes, scored, of_a_step = {}, {}, set(), {}
    budgeted = [
        arm for arm in design.arms if arm.trainer == "loop"
    ]  # others are twins of these, and models at their start
    for arm in budgeted:
        trial = design.trial(arm, 1, 0, source=str(long_text), report=True)
        made, s = ask.corpus(trial.text, trial.scale.val_tokens, trial.slice), trial.scale
        if arm.text not in of_a_step:
            of_a_step[arm.text] = _Count.of(config_of(trial, made), made).flop
        operations[arm.name] = s.steps * of_a_step[arm.text]
        n_bytes[arm.name] = s.steps * s.batch_size * s.n_ctx * made.train.n_bytes / len(made.train)
        scored.add(made.val.n_bytes)
        assert f"in {s.steps:,} steps" in arm.what and "bits" in arm.probes
    assert len(scored) == 1
    assert budgeted[0].name == "characters"
    for arm in budgeted[1:]:
        equal, other = (operations, n_bytes) if arm.name.endswith("equal compute") else (n_bytes, operations)
        assert equal[arm.name] == pytest.approx(equal["characters"], rel=0.01), arm.name
        ratio = float(re.search(r"([\d.]+) times their", arm.what)[1])
        assert ratio == pytest.approx(other[arm.name] / other["characters"], abs=0.006), arm.name
    losses = [c for c in design.contrasts if c.unit not in ("rank correlation", "nats per answer")]
    assert {quantity for c in losses for _, _, quantity in c.terms} == {"bits per byte"}
    assert all(design.arm(c.terms[0][1]).what in c.what for c in design.contrasts if c.name.endswith("characters"))


def test_what_tokenizers_lose_and_are_charged_for_is_told_beside_their_bits(long_text, kept):
    """With a loss of 0 nothing but the charge is left of the bits per byte."""
    question, ask = find("tokenizers"), Ask(source=str(long_text), quick=True, cache=kept)
    design = question.design(ask)
    bits = {
        name: streams.corpus(text, str(long_text), design.scale.val_tokens, kept).bits_per_byte(0.0)
        for name, text in design.texts
    }
    said = question.counted(ask, design)
    assert bits["words 2000"] > 0 and f"{bits['words 2000']:.3f} bits per byte of words 2000" in said
    assert all((f"of {name}" in said) == (charge > 0) for name, charge in bits.items())
    assert f"; the other {sum(charge == 0 for charge in bits.values())} tokenizers lose nothing" in said


def test_what_comes_with_a_tokenizer_is_told_beside_its_bits(long_text, kept):
    """Parameters and bytes in a window are not held equal."""
    from qkv.models.counting import n_parameters
    from qkv.studies.engine.assembly import config_of

    question, ask = find("tokenizers"), Ask(source=str(long_text), quick=True, cache=kept)
    design = question.design(ask)
    said = question.counted(ask, design)
    assert all(f" {name} " in said.partition("Not held equal are")[2] for name, _ in design.texts)
    arm = design.arm("characters")
    made = ask.corpus(dict(design.texts)["characters"], design.scale.val_tokens)
    n = n_parameters(config_of(design.trial(arm, 1, 0, source=str(long_text), report=True), made).model)
    assert f"characters {n:,} and {round(made.bytes_per_token * 32)}" in said


def test_texts_that_stand_within_those_that_are_trained_on_are_told():
    made = SimpleNamespace(
        val=SimpleNamespace(texts=["a good film", "bad", "good a film", "a good film indeed it is so"]),
        train=SimpleNamespace(texts=["this is a good film indeed", "not bad  at all"]),
    )

    class Table(Ask):
        def corpus(self, text, val_tokens=0):
            return made

    question, named = find("frozen-embeddings"), ("a text", "0" * 64)
    for labelled in (True, False):
        ask = Table(named=named, labelled=labelled)
        said = question.counted(ask, question.design(ask))
        assert said.startswith("50% of the validation texts occur word for word") if labelled else said == ""
    made.train.texts = ["nothing of it"]
    ask = Table(named=named, labelled=True)
    assert question.counted(ask, question.design(ask)) == ""


def test_an_estimate_is_not_moved_by_a_busy_moment(monkeypatch):
    """The difference of two short trainings was timed once: a moment's work of another process made it 0 or tenfold."""
    from qkv.studies.engine import estimate as timed

    design = find("words-or-pixels").design(Ask(named=("a text", "0" * 64), quick=True))
    trial = design.trial(design.arm("words, trained"), 1, 0, source="", report=True)

    def seconds(busy: set[int]) -> float:
        calls = iter(range(100))
        monkeypatch.setattr(
            timed, "_clock", lambda trial, cache, steps: 1.0 + 0.1 * steps + 3.0 * (next(calls) in busy)
        )
        return timed._seconds(trial, None)

    assert seconds({1, 4}) == seconds({2, 3}) == seconds({0}) == pytest.approx(seconds(set()))


def test_the_margin_of_pixels_and_words_is_that_of_a_frozen_table_in_nats():
    """A margin above the known cost of a frozen table would leave nothing to be found."""
    known_cost, entropy = 0.086, 5.2  # of 512 pieces of Shakespeare: docs/answers, frozen-embeddings
    named = Ask(named=("a text", "0" * 64), quick=True)
    pixels, nats = (find(name).design(named).primary.margin for name in ("words-or-pixels", "frozen-embeddings"))
    assert pixels == pytest.approx(nats / entropy, rel=0.1)
    assert pixels < known_cost / entropy / 2


def test_two_budgets_that_come_to_as_many_steps_are_two_arms():
    from qkv.studies.questions.tokenizers import budgets

    texts = {"characters": Text(), "BPE 70": Text(tokenizer="bpe", vocab=70)}

    class Same(Ask):
        def corpus(self, text, val_tokens=0):
            return streams.corpus(Text(stream="modular", settings=(("modulus", 70),)), "", 0, None)

    found = budgets(Same(), texts, scale(steps=40))
    assert [found[f"steps of BPE 70, equal {budget}"] for budget in ("compute", "text")] == [40, 40]
    design = find("tokenizers").design(Ask(named=("a text", "0" * 64)))
    sizes = [dict(design.arm(f"BPE 512, equal {budget}").sizes) for budget in ("compute", "text")]
    assert [size.get("batch_size") for size in sizes] == [None, design.scale.batch_size]


def test_the_mlp_beside_attention_makes_up_for_little():
    """Of a vocabulary of thousands of letters it would else become another model."""
    from qkv.studies.questions.attention_or_lstm import matched

    class Letters(Ask):
        def corpus(self, text, val_tokens=0):
            return SimpleNamespace(tokenizer=SimpleNamespace(d_vocab=5000))

    found = matched(Letters(), {"text": Text()}, scale(d_model=32, n_layers=2))
    assert found["d_mlp of text"] in (112, 144)
    assert found["LSTM of text"] == pytest.approx(found["attention of text"], rel=0.03)


@pytest.fixture
def told_by_a_word(tmp_path):
    """400 texts of nine words, the last of which tells their class."""
    draws, rows = generator("tests", "labelled"), ["text\tlabel"]
    for i in range(400):
        words = [streams.word(int(w)) for w in draws.integers(200, size=8)]
        rows.append(" ".join([*words, "good" if i % 2 else "bad"]) + f"\t{i % 2}")
    (tmp_path / "labelled.tsv").write_text("\n".join(rows) + "\n")
    return str(tmp_path / "labelled.tsv")


def _pretrained(name):
    """An arm of the study of labelled texts."""
    return find("frozen-embeddings").design(Ask(named=("a table", "0" * 64), labelled=True)).arm(name)


def _cut(arm, **before):
    """An arm over classes at the size of a test."""
    small = (("batch_size", 16), ("steps", 60))
    before = tuple((dict(arm.before) | before).items()) if arm.before else ()
    return dataclasses.replace(arm, text="text", sizes=small, lr=0.01, before=before)


LABELLED = Text(stream="labelled", tokenizer="word", settings=(("specials", True),))


def test_a_source_with_labels_adds_the_objective_of_telling_classes_apart(told_by_a_word, labelled, small_text, kept):
    assert Ask(source=told_by_a_word).has_labels() and not Ask(source=str(small_text)).has_labels()
    assert not Ask().has_labels()
    design = find("frozen-embeddings").design(Ask(source=str(labelled), cache=kept))
    assert [c.unit for c in design.contrasts[2:]] == ["points of accuracy"] * 5
    named = (design.source_name, design.source_sha256)
    told = find("frozen-embeddings").design(Ask(named=named, labelled=True))
    assert told == design and told.has_labels, "a kept run of it is told about without the table"
    assert not find("frozen-embeddings").design(Ask(named=named)).has_labels
    for arm in design.arms:
        _try(design.trial(arm, 1, 0, source=str(labelled), report=True), kept)
    rows = [measure(_cut(design.arm(f"classify {how}")), LABELLED, told_by_a_word) for how in ("trained", "frozen")]
    assert all(row["measures"]["accuracy"] > 60 for row in rows), "a word that tells the class is found"
    assert rows[0]["frozen"] == [] and rows[1]["frozen"] == ["W_E"]


def test_a_pretrained_arm_starts_from_the_body_that_learned_the_first_task(told_by_a_word):
    """Bit for bit; with the body held it stays that, and its head is the one of an arm that trained nothing before."""
    arm = dataclasses.replace(_cut(_pretrained("feature-based"), steps=20), probes=())
    made = small_trial(arm, LABELLED, told_by_a_word)
    corpus = streams.corpus(made.text, made.source, made.scale.val_tokens, None)
    texts, first = streams.without_labels(corpus), before(made)
    assert first.arm.task == "masked" and first.scale.steps == 20 and first.seed == made.seed
    body, own, plain = parts_of(first, texts), parts_of(made, corpus), parts_of(made, corpus)
    TRAINERS["loop"](first, body, ())
    TRAINERS["pretrained"](made, own, ())
    learned, held = body.catalogue.state(), own.catalogue.state()
    assert set(held) - set(learned) == {"W_cls", "b_cls"}
    for address in set(held) & set(learned):
        assert torch.equal(held[address], learned[address]) and torch.equal(own.start[address], learned[address])
    assert torch.equal(own.start["W_cls"], plain.start["W_cls"]) and not torch.equal(held["W_cls"], own.start["W_cls"])
    assert not torch.equal(learned["W_E"], body.start["W_E"])


def test_designs_without_a_first_task_keep_the_hash_that_they_had():
    plain = find("frozen-embeddings").design(Ask(named=("a text", "0" * 64), quick=True))
    assert all("before" not in arm for arm in plain.as_dict()["arms"])
    assert "before" not in plain.arms[0].content() and "before" in _pretrained("fine-tuned").content()
