"""Every sentence of a reading holds the run's own numbers; what the folder lacks is left out."""

from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save_file

from qkv.errors import RunFolderError
from qkv.inspection.answers.answer import apart
from qkv.inspection.answers.loss import loss as loss_answer
from qkv.inspection.answers.matrices import _together
from qkv.inspection.answers.reading import QUESTIONS, read
from qkv.instruments.ledger import EARNED
from qkv.telemetry import LEDGER_ARM, NULL_ARM, RUN_ARM, AddressRow, Store
from qkv.words import as_good_as, percent, signed, stands

KEPT = "The weights of step 30 are kept as the best ones."
FALLING = [(10, 3.0, 3.1), (20, 2.0, 2.1), (30, 1.5, 1.6)]


def answer(run, key):
    return next((a for a in read(run.path) if a.key == key), None)


def test_trained_embeddings_are_told_with_their_rows_and_their_null(made):
    counts = np.arange(made.n, 0, -1)
    run = made.with_rows(counts=counts)
    told = answer(run, "embeddings")
    the = run.tokenizer.readable["the"]
    assert told.sentence.startswith(
        "Yes: the median row of W_E moved by 45% of its initial norm (over 8 rows whose token"
    )
    assert told.numbers["median row drift"] == pytest.approx(np.median(run.drift))
    assert told.numbers["largest row drift"] == pytest.approx(run.drift.max())
    assert told.address == 'W_E["the"]'
    length = float(np.hypot(1, run.drift[the]))
    assert told.numbers['W_E["the"] length before'] == 1
    assert told.numbers['W_E["the"] length after'] == pytest.approx(length)
    assert f"went from norm 1.0 to {length:.1f} and turned by" in told.more[-1]
    assert any("every row got a gradient" in line for line in told.more)
    assert any("rare tokens moved farther" in line for line in told.more)  # drift grows as the count falls
    assert told.null.startswith("At step 4, rows had moved by ") and told.measure == "row_drift"


@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_run_of_which_only_the_start_is_known_is_not_said_to_have_stood_still(made, is_recorded):
    start = {"W_E": np.ones((made.n, 4), dtype=np.float32)}
    save_file(start, made.path / "checkpoints" / "step-00000000" / "model.safetensors")
    with made.store() as store:
        if is_recorded:
            store.add_vector(0, "row_drift", "W_E", np.zeros(made.n, dtype=np.float32))
    assert answer(made, "embeddings") is None


def test_rows_never_met_are_said_to_have_moved_exactly_zero(made):
    counts, scale = np.full(made.n, 7), np.ones(made.n)
    counts[-2:] = scale[-2:] = 0
    told = answer(made.with_rows(scale, counts), "embeddings")
    assert any("2 rows of tokens" in line and "did not move at all" in line for line in told.more)
    assert told.numbers["rows never met"] == 2 and told.numbers["largest drift of a row never met"] == 0


def test_rows_never_met_that_moved_are_told_with_the_reason(made):
    counts = np.full(made.n, 7)
    counts[-1] = 0
    told = answer(made.with_rows(1.0, counts, tied=True), "embeddings")
    assert any("1 row of tokens" in line and "also the output matrix" in line for line in told.more)


def test_a_row_never_met_that_moved_without_tying_or_decay_is_not_explained_away(made):
    counts = np.full(made.n, 7)
    counts[-1] = 0
    told = answer(made.with_rows(1.0, counts), "embeddings")
    assert told.more[0].startswith("Of the 1 row of tokens") and told.more[0].endswith("% of their initial norm.")


@pytest.mark.parametrize(
    ("turned", "expected"),
    [
        (0.0, "Of the 2 rows of tokens that do not occur in the training text, all moved, by up to 30% of their initial"
         " norm. They shrank without turning, which is weight decay (0.1) and not learning."),
        (0.2, "Of the 2 rows of tokens that do not occur in the training text, all moved, by up to 36% of their initial"
         " norm. The optimizer's weight decay (0.1) shrinks every row, whether or not its token occurs."),
    ],
)  # fmt: skip
def test_rows_never_met_that_weight_decay_shrank_are_told_with_how_far_and_why(made, turned, expected):
    """As in the demo: 161 rows of tokens that do not occur moved by 72 %, and pages said exactly 0."""
    (made.path / "config.toml").write_text("[training.optimizer]\nweight_decay = 0.1\n")
    counts = np.full(made.n, 7)
    counts[-2:] = 0
    start = np.zeros((made.n, 4), dtype=np.float32)
    start[:, 0] = 1
    last = 0.7 * start
    last[:-2, 1], last[-1, 1] = 1.0, turned  # the rows that were met turn as well
    save_file({"W_E": start}, made.path / "checkpoints" / "step-00000000" / "model.safetensors")
    save_file({"W_E": last}, made.path / "model.safetensors")
    with made.store() as store:
        store.add_vector(64, "row_drift", "W_E", np.linalg.norm(last - start, axis=1).astype(np.float32))
        store.add_vector(0, "row_count", "W_E", counts)
    told = answer(made, "embeddings")
    assert told.more[0] == expected
    assert told.numbers["rows never met"] == told.numbers["rows never met that moved"] == 2


def test_rows_never_met_of_which_only_some_moved_are_counted(made):
    counts, scale = np.full(made.n, 7), np.ones(made.n)
    counts[-3:], scale[-2:] = 0, 0
    told = answer(made.with_rows(scale, counts), "embeddings")
    assert "3 rows of tokens" in told.more[0] and ", 1 moved, by up to" in told.more[0]


def test_drift_that_does_not_go_with_frequency_is_not_said_to(made):
    """In the demo the rank correlation was -0.007, and pages said that frequent tokens had moved most."""
    counts = 1 + np.abs(2 * np.arange(made.n) - (made.n - 1))  # drift rises; both of its ends are met most
    told = answer(made.with_rows(1.0, counts), "embeddings")
    correlation = told.numbers["rank correlation of drift and count"]
    assert abs(correlation) < 0.2
    assert told.more[1] == (
        f"How far a row moved hardly depends on how frequent its token is (rank correlation {correlation:+.2f})."
    )


def test_frozen_embeddings_are_told(made):
    told = answer(made.with_rows(0.0, np.full(made.n, 7)), "embeddings")
    assert told.sentence == f"No: all {made.n} rows of W_E are exactly where they started."


@pytest.mark.parametrize(
    ("gradient", "why"), [(0.0, "no gradient has reached it yet"), (None, "it was frozen")], ids=["zero", "none"]
)
def test_embeddings_that_did_not_move_are_told_why(made, gradient, why):
    run = made.with_rows(0.0, np.full(made.n, 7))
    with made.store() as store:
        store.add_values(1, "grad_norm", ["W_E"], [gradient])
    (run.path / "config.toml").write_text('changes = ["W_E=freeze"]\n')
    assert answer(run, "embeddings").sentence.endswith(f"where they started: {why}.")


def test_where_fewer_than_half_of_the_rows_moved_it_is_said_how_many(made):
    told = answer(made.with_rows(np.arange(made.n) < 3, np.full(made.n, 7)), "embeddings")
    assert told.sentence == f"In part: of {made.n} rows whose token occurs in the training text, 3 moved."


def test_rows_that_moved_in_neither_arm_are_not_compared(made):
    with made.store() as store:
        for arm, last in ((RUN_ARM, 2), (NULL_ARM, 1)):
            for step in range(last + 1):
                drift = np.full(made.n, step // 2, dtype=np.float32)
                store.add_vector(step, "row_drift", "W_E", drift, arm=arm)
    told = answer(made, "embeddings")
    assert told.sentence.startswith("Yes: ") and told.null == ""


def test_embeddings_are_answered_from_weights_alone_where_nothing_was_watched(made):
    run = made.with_rows()
    (run.path / "telemetry.sqlite").unlink()
    Store(run.path / "telemetry.sqlite").close()
    told = answer(run, "embeddings")
    assert told.numbers["median row drift"] == pytest.approx(np.median(run.drift)) and told.null == ""
    assert f"(over {made.n} rows)." in told.sentence, "tokens were not counted, so all rows are meant"


def test_matrices_are_ranked_and_compared_with_the_random_label_control(made):
    last = {"W_E": 0.2, "L0.W_Q": 0.4, "L0.W_O": 1.2, "L1.W_Q": 0.6, "L1.W_O": 1.6, "W_U": 0.8}
    told = answer(made.with_drifts(last), "matrices")
    assert (
        told.sentence == "L1.W_O moved most, by 1.6 times the norm of a usual initialization; W_E moved least (0.20)."
    )
    assert "W_O 1.4, W_U 0.80, W_Q 0.50, W_E 0.20" in told.more[0]
    assert told.more[1].startswith("W_O and W_U start at zero")
    assert told.null == (
        "At step 8, W_E had moved 2.0 times as far as in the random-label control (labels shuffled, frequencies kept). "
        "The median matrix had moved 1.6 times as far, and W_U 1.3 times as far."
    )
    assert told.numbers["W_E at step 8, relative to the random-label control"] == pytest.approx(2)


@pytest.mark.parametrize(
    ("task", "what"),
    [("causal", " (unigram 6.30): it learns how frequent each token is."),
     ("classify", ": it learns how frequent each class is.")],
)  # fmt: skip
def test_an_old_control_is_said_to_learn_frequencies_and_how_early_it_is_compared(made, task, what):
    """In the demo its loss fell by 1.2 nats, while pages said that nothing could be learned from its labels."""
    (made.path / "config.toml").write_text(f'task = "{task}"\n')
    run = made.with_drifts({"W_E": 0.2, "L0.W_Q": 0.4})
    with run.store() as store:
        for step, loss in ((1, 7.59), (2, 7.0), (8, 6.36)):
            store.add_step(step, tokens=step, loss=loss, lr=0.1, grad_norm=1.0, arm=NULL_ARM)
        store.add_step(64, tokens=64, loss=3.0, lr=0.1, grad_norm=1.0)
        store.set_fact("baselines", {"unigram": 6.3} if task == "causal" else {"majority": 0.5})
    told = answer(run, "matrices")
    assert told.null.startswith("At step 8 of 64 (12%), W_E had moved 2.0 times as far as in the random-label control")
    assert "(labels shuffled, frequencies kept)" in told.null
    assert told.null.endswith(f"The control's own loss fell from 7.59 to 6.36 nats{what}")


def test_a_control_whose_loss_did_not_fall_is_not_said_to_learn(made):
    run = made.with_drifts({"W_E": 0.2, "L0.W_Q": 0.4})
    with run.store() as store:
        for step, loss in ((1, 6.3), (8, 6.4)):
            store.add_step(step, tokens=step, loss=loss, lr=0.1, grad_norm=1.0, arm=NULL_ARM)
    assert "learns" not in answer(run, "matrices").null


def test_a_control_of_uniform_labels_is_said_to_learn_no_more_than_to_guess_evenly(made):
    run = made.with_drifts({"W_E": 0.2, "L0.W_Q": 0.4})
    (made.path / "config.toml").write_text('task = "classify"\n[model]\nclasses = ["a", "b"]\n')
    with run.store() as store:
        for step, loss in ((1, 0.9), (8, 0.7)):
            store.add_step(step, tokens=step, loss=loss, lr=0.1, grad_norm=1.0, arm=NULL_ARM)
        store.add_step(64, tokens=64, loss=3.0, lr=0.1, grad_norm=1.0)
        store.set_fact("null", {"labels": "uniform", "steps": 8})
    told = answer(run, "matrices").null
    assert told.startswith("At step 8 of 64 (12%)") and "(labels drawn uniformly at every step)" in told
    assert told.endswith(
        "The control can only learn to guess evenly (0.693 nats). All other movement in it is due to the optimizer,"
        " weight decay and noise."
    )


def test_what_moved_first_is_told_by_kind_with_what_got_no_gradient(made):
    last = {"W_E": 0.2, "L0.W_Q": 0.4, "L0.W_O": 1.2, "L1.W_Q": 0.6, "L1.W_O": 1.6, "W_U": 0.8}
    told = answer(made.with_drifts(last), "order")
    assert told.sentence == "All kinds of matrices made half of their final movement by step 32."
    assert told.more == (
        "The gradient of the first update was exactly 0 in W_E, W_Q and W_O. Matrices that start at zero (W_O and W_U) "
        "pass no gradient back until they have moved.",
    )


def test_of_a_model_of_one_stack_a_layer_is_no_stack():
    assert _together({"L0.W_O": True, "L1.W_O": False, "W_E": False}) == ["L0.W_O"]
    so = {"enc.L0.W_O": True, "enc.L1.W_O": True, "dec.L0.W_O": False, "dec.L1.W_O": True}
    assert _together(so) == ["W_O of the encoder", "dec.L1.W_O"]


def test_matrices_level_with_the_random_label_control_are_not_ranked(made):
    with made.store() as store:
        for arm in (RUN_ARM, NULL_ARM):
            store.add_values(1, "drift", ["W_E", "L0.W_Q"], [0.25, 0.5], arm=arm)
    told = answer(made, "matrices")
    assert told.null == (
        "At step 1, each matrix had moved as far as in the random-label control (labels shuffled, frequencies kept)."
    )


def test_what_the_first_gradient_did_not_reach_stands_with_what_did_not_move_in_a_short_run(made):
    with made.store() as store:
        for step in (0, 1):
            store.add_values(step, "norm", ["W_E", "W_U"], [1.0, float(step)])
            store.add_values(step, "drift", ["W_E", "W_U"], [0.0, 0.5 * step])
        store.add_values(1, "grad_norm", ["W_E", "W_U"], [0.0, 1.0])
    told = answer(made, "frozen")
    assert told.more[1].startswith(
        "The gradient of the first update was exactly 0 in W_E. Matrices that start at zero (W_U)"
    )


def test_matrices_that_did_not_move_are_named(made):
    told = answer(made.with_drifts({"W_E": 0.0, "L0.W_Q": 0.0, "L1.W_Q": 0.5}), "frozen")
    assert told.sentence == "W_E and L0.W_Q did not move at all: drift is exactly 0 at step 64."
    assert told.more == ("1 other matrix moved.",)
    assert answer(made, "matrices").sentence == "L1.W_Q moved most, by 50% of its initial norm."


def test_nothing_is_called_frozen_where_everything_moved(made):
    assert answer(made.with_drifts({"W_E": 0.1, "L0.W_Q": 0.2}), "frozen") is None


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (1.5, "Not yet: 1.50 nats per word is better than unigram counts (3.30) and bigram counts (2.40), but worse"
              " than the best n-gram (1.40)."),
        (1.2, "Yes: 1.20 nats per word is better than the best n-gram (1.40) and every other baseline."),
        (3.5, "No: 3.50 nats per word is worse than unigram counts (3.30) and every other baseline. Counting tokens is"
              " also worse than uniform guessing: the validation text is unlike the training text."),
    ],
)  # fmt: skip
def test_a_loss_is_read_against_its_baselines(made, loss, expected):
    run = made.with_losses([(10, loss, 4.0)], unigram=3.3, bigram=2.4, ngram=1.4, ngram_order=6, xz=None)
    told = answer(run, "loss")
    assert told.sentence.startswith(expected)
    assert f"({2 * loss:.2f} bits per byte), at step 10, over the whole validation text" in told.more[0]
    assert told.numbers["unigram counts (nats per word)"] == 3.3
    assert f"ln {run.n}" in told.null


@pytest.mark.parametrize(
    ("loss", "low", "high", "expected"),
    [
        (1.39, -0.05, 0.03, "Level with the best baseline: 1.39 nats per word is better than unigram counts (3.30), and"
                            " about as good as the best n-gram (1.40), within ±0.050 nats."),
        (1.41, -0.03, 0.06, "Inconclusive: 1.41 nats per word is better than unigram counts (3.30), and neither"
                            " clearly better nor worse than the best n-gram (1.40; -0.030 to +0.060 nats)."),
        (1.3, -0.14, -0.06, "Yes: 1.30 nats per word is better than the best n-gram (1.40) and every other baseline."),
        (1.5, 0.06, 0.14, "Not yet: 1.50 nats per word is better than unigram counts (3.30), but worse than the best"),
    ],
)  # fmt: skip
def test_a_loss_is_better_or_worse_than_counting_as_far_as_its_interval_tells(made, loss, low, high, expected):
    margin = {"difference": (low + high) / 2, "low": low, "high": high, "windows": 40}
    run = made.with_losses([(10, loss, 4.0)], unigram=3.3, ngram=1.4, ngram_order=6)
    with run.store() as store:
        store.set_fact("loss_less_ngram", margin)
    told = answer(run, "loss")
    assert told.sentence.startswith(expected)
    assert f"95% interval {signed(low)} to {signed(high)}, over 40 windows" in told.more[1]
    assert told.numbers["minus the best n-gram, low"] == low


def test_a_margin_over_an_ngram_whose_loss_is_gone_is_not_told(made):
    run = made.with_losses([(10, 1.3, 4.0)], unigram=3.3)
    with run.store() as store:
        store.set_fact("loss_less_ngram", {"difference": -0.1, "low": -0.14, "high": -0.06, "windows": 40})
    told = answer(run, "loss")
    assert told.sentence.startswith("Yes: 1.30 nats per word is better than unigram counts") and len(told.more) == 1


@pytest.mark.parametrize(
    ("accuracy", "expected"),
    [
        (0.90, "Yes: accuracy 90%, better than words (82%) and every other baseline."),
        (0.83, "Level with the best baseline: accuracy 83%, better than the commonest class (51%), and about as good as"
               " words (82%), within ±3.0 points."),
        (0.75, "Not yet: accuracy 75%, better than the commonest class (51%), but worse than words (82%)."),
        (0.50, "Not yet: accuracy 50%, about as good as the commonest class (51%), within ±3.0 points, but worse"),
    ],
)  # fmt: skip
def test_accuracy_is_read_against_baselines_as_far_as_its_interval_tells_them_apart(accuracy, expected):
    task = SimpleNamespace(
        judged=True, metric="accuracy", higher_is_better=True, items="", examples="texts", target="text",
        yardsticks={"majority": "the commonest class", "tfidf": "words"},
    )  # fmt: skip
    summary = {
        "accuracy": accuracy,
        "accuracy_interval": (accuracy - 0.02, accuracy + 0.02),
        "baselines": {"majority": 0.51, "tfidf": 0.82},
    }
    best = SimpleNamespace(loss=0.4, step=10)
    telemetry = SimpleNamespace(best_evaluation=lambda: best)
    run = SimpleNamespace(task=task, summary=summary)
    told = loss_answer(SimpleNamespace(run=run, telemetry=telemetry, unit="text", n_answers=2))
    assert told is not None and told.sentence.startswith(expected)


def test_a_loss_without_baselines_is_told_alone(made):
    assert answer(made.with_losses(FALLING), "loss").sentence.startswith(
        "The lowest validation loss is 1.50 nats per word,"
    )


@pytest.mark.parametrize(("task", "over"), [("classify", "texts"), ("image", "images"), ("translate", "pairs")])
def test_a_loss_of_no_text_is_not_said_to_be_of_one(made, task, over):
    (made.path / "config.toml").write_text(f'task = "{task}"\n')  # while it trains there is no summary
    assert f"at step 30, over all validation {over}." in answer(made.with_losses(FALLING), "loss").more[0]


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        (FALLING, ("No: the validation loss is lowest at the last step, 30.", "The training loss there is 1.60 nats.")),
        ([*FALLING, (40, 1.505, 1.4)],
         ("No: the validation loss was lowest at step 30 and ended only 0.33% higher.", "The validation loss was 1.50"
          " nats at step 30 and 1.50 at the end; the training loss went from 1.60 to 1.40.", KEPT)),
        ([*FALLING, (40, 1.7, 1.2), (50, 1.9, 0.8)],
         ("Yes: the validation loss rises after step 30.", "The validation loss was 1.50 nats at step 30 and 1.90 at"
          " the end; the training loss went from 1.60 to 0.800.", KEPT)),
        ([*FALLING, (40, 81.7, 90.2), (50, 248.0, 250.0)],
         ("No, it diverged: both losses rose after step 30.", "The validation loss was 1.50 nats at step 30 and 248 at"
          " the end; the training loss went from 1.60 to 250.", KEPT)),
    ],
)  # fmt: skip
def test_overfitting_is_dated(made, losses, expected):
    told = answer(made.with_losses(losses), "over-fitting")
    assert (told.sentence, *told.more) == expected


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_ledger_names_who_brought_the_change_whichever_way_it_went(made, sign):
    earned = {"W_E": 0.5 * sign, "L0.W_Q": -0.1 * sign, "W_U": 1.6 * sign}
    with made.store() as store:
        store.register_measures([EARNED])
        for step, loss in ((0, 5.0), (16, 5.0 + sign), (40, 5.0 + 2 * sign)):
            store.add_evaluation(step, loss, is_best=False, arm=LEDGER_ARM)
            if step:
                store.add_values(step, "earned", list(earned), [v / 2 for v in earned.values()])
    told = answer(made, "ledger")
    way = "rose" if sign > 0 else "fell"
    assert told.sentence == (
        f"W_U (80%), W_E (25%) and L0.W_Q (-5%) of the 2.0 nats by which the probe batch's loss {way}."
    )
    assert told.more[0].startswith("From step 0 to 40, all matrices together account for it to within ")
    assert told.more[1].endswith(f"W_U {1.6 * sign:+.1f}, W_E {0.5 * sign:+.2f}, W_Q {-0.1 * sign:+.2f}.")
    assert told.more[2] == "The movement of L0.W_Q worked against it, by 0.10 nats." and told.address == "W_U"


def test_a_row_is_no_example_where_no_trained_weights_were_kept(made):
    run = made.with_rows(counts=np.arange(made.n, 0, -1))
    for place in (run.path, run.path / "checkpoints" / "step-00000064"):
        (place / "model.safetensors").unlink()
    told = answer(run, "embeddings")
    assert told.address == "W_E" and not any("went from" in line for line in told.more)
    (run.path / "checkpoints" / "step-00000016").mkdir()
    save_file({"W_E": np.eye(run.n, 4, dtype=np.float32)}, run.path / "checkpoints/step-00000016/model.safetensors")
    assert answer(run, "embeddings").more[-1].endswith("by step 16, the last whose weights were kept.")


def test_two_evaluations_are_too_few_to_speak_of_over_fitting(made):
    assert answer(made.with_losses(FALLING[:2]), "over-fitting") is None


def test_trouble_comes_first(made):
    run = made.with_losses(FALLING)
    with run.store() as store:
        store.add_event(12, "nan", "the loss is nan at step 13; L0.W_Q was first", address="L0.W_Q")
        store.add_sample(30, "The cat", "sees\nthe   dog")
    told = read(run.path)
    assert told[0].key == "trouble" and told[0].address == "L0.W_Q"
    assert told[0].sentence == "The loss is nan at step 13; L0.W_Q was first."
    written = next(a for a in told if a.key == "samples")
    assert written.sentence == "At step 30, after \u201cThe cat\u201d: \u201csees the dog\u201d"


def test_one_prompt_is_followed_and_a_sample_without_a_word_is_said_to_be_one(made):
    with made.store() as store:
        for step, text in ((1, "the the"), (2, " ")):
            for prompt in ("a king", "a dog"):
                store.add_sample(step, prompt, text)
    told = answer(made, "samples")
    assert told.sentence == "At step 2, after “a king”: an empty output"
    assert told.more == ("At step 1: “the the”",)


@pytest.mark.parametrize(("seconds", "first"), [(1.5, False), (90.0, True)])
def test_a_dear_watching_is_read_first_only_where_it_took_a_while(made, seconds, first):
    with made.store() as store:
        store.set_fact("watch", {"level": "light", "seconds": seconds, "share": 0.08, "looks": 3, "numbers": 9})
    assert (answer(made, "watch").weight > 0.3) == first


def test_what_watching_cost_is_told(made):
    with made.store() as store:
        store.set_clock_fact(
            "watch", {"level": "light", "seconds": 1.5, "share": 0.0068, "looks": 63, "numbers": 16069}
        )
    assert answer(made, "watch").sentence == "0.68% of the time: 63 measurements of every matrix."


def test_an_empty_run_answers_nothing_and_a_missing_one_is_an_error(made, tmp_path):
    made.store().close()
    assert read(made.path) == []
    with pytest.raises(RunFolderError, match="no telemetry"):
        read(tmp_path / "nowhere")


def test_answers_come_in_the_order_of_their_weight(made):
    run = made.with_rows(counts=np.full(made.n, 3)).with_drifts({"W_E": 0.2, "L0.W_Q": 0.0}).with_losses(FALLING)
    told = read(run.path)
    assert {a.key for a in told} == {"embeddings", "matrices", "loss", "over-fitting", "frozen"}
    names = [ask.__name__.replace("over_fitting", "over-fitting") for ask in QUESTIONS]
    assert told == sorted(told, key=lambda a: (-a.weight, names.index(a.key)))
    assert told[-1].key == "over-fitting", "what is as hoped for is said last"
    assert all(0 <= a.weight <= 1 for a in told)


def test_what_differs_from_its_null_goes_up_and_what_does_not_goes_down():
    assert apart(2.0, 2.0) == 0 and apart(1.0, 0.0) == 0
    assert apart(1.0, 2.0) == apart(2.0, 1.0) == pytest.approx(0.5)
    assert apart(100.0, 1.0) == 1


def test_no_sentence_holds_a_number_that_is_not_finite(made):
    run = made.with_rows(counts=np.full(made.n, 3)).with_losses([(10, 1e9, None)] * 3)
    for told in read(run.path):
        text = " ".join([told.sentence, *told.more, told.null])
        assert " nan" not in text and "inf " not in text


def patterns(run, values):
    """Record `values`: measure -> head -> (first, last)."""
    heads = sorted({head for found in values.values() for head in found})
    rows = [AddressRow(address=f"{head}.pattern", site="attn", kind="pattern", shape=()) for head in heads]
    with run.store() as store:
        store.register_addresses(rows)
        for measure, heads in values.items():
            for step, i in ((0, 0), (9, 1)):
                store.add_values(step, measure, [f"{head}.pattern" for head in heads], [v[i] for v in heads.values()])


def test_heads_are_told_by_what_they_came_to_look_at(made):
    run = made.with_rows()
    patterns(
        run,
        {
            "previous_mass": {"L0.H0": (0.1, 0.9), "L0.H1": (0.1, 0.5), "L1.H0": (0.1, 0.2)},
            "first_mass": {"L0.H0": (0.1, 0.0), "L0.H1": (0.1, 0.1), "L1.H0": (0.1, 0.7)},
            "entropy": {"L0.H0": (2.0, 0.5), "L0.H1": (2.0, 1.5), "L1.H0": (2.0, 1.0)},
        },
    )
    told = answer(run, "heads")
    assert told.sentence == (
        "3 of 3 heads specialized: L0.H0 attends to the previous token (90% of its attention), as does L0.H1; "
        "L1.H0 attends to the first token (70% of its attention)."
    )
    assert told.brief.endswith(", as does L0.H1.") and told.address == "L0.H0.pattern"
    assert told.numbers["L1.H0: first mass"] == 0.7 and told.numbers["median entropy now (nats)"] == 1.0
    assert "over about 3 tokens" in told.more[0] and "The sharpest is L0.H0, with 0.50." in told.more[0]


def test_heads_without_a_habit_are_not_given_one(made):
    run = made.with_rows()
    patterns(run, {"previous_mass": {"L0.H0": (0.1, 0.15), "L0.H1": (0.1, 0.05)}})
    told = answer(run, "heads")
    assert told.sentence.startswith("No head specialized: none of 2") and "0.3 (previous token)" in told.more[-1]


def test_one_head_is_not_spoken_of_as_many(made):
    run = made.with_rows()
    patterns(run, {"previous_mass": {"L0.H0": (0.1, 0.15)}, "entropy": {"L0.H0": (1.5, 1.0)}})
    told = answer(run, "heads")
    assert told.sentence.startswith("No head specialized")
    assert told.more[0] == "It spreads its attention over about 3 tokens (4 at initialization): entropy 1.0 nats."
    assert told.null.endswith("where its entropy was 1.5 nats.")


def test_a_brief_answer_is_a_line(made):
    told = read(made.with_rows().path)
    assert told and all(len(a.brief) < 200 and "\n" not in a.brief for a in told)


def test_rows_of_a_text_that_was_counted_in_part_are_told_of_that_part(made):
    counts, scale = np.full(made.n, 7), np.ones(made.n)
    counts[-2:] = scale[-2:] = 0
    run = made.with_rows(scale, counts)
    with run.store() as store:
        store.set_fact("tokens_counted", {"counted": 1000, "of": 5000})
    told = answer(run, "embeddings")
    assert "whose token occurs in the first 1,000 tokens of the training text" in told.sentence
    assert any("do not occur in the first 1,000 tokens of the training text" in line for line in told.more)


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.05, "5%"), (0.994, "99%"), (0.995, "99.5%"), (0.996, "99.6%"), (0.9996, "99.96%"), (1.0, "100%"),
     (1 - 1e-9, "100%"), (1.003, "100.3%"), (1.01, "101%"), (-0.997, "-99.7%"), (12.0, "1,200%")],
)  # fmt: skip
def test_a_hundred_percent_is_a_whole_alone(share, words):
    assert percent(share) == words


def test_baselines_that_cannot_be_told_apart_share_one_clause():
    apart = {"close": 0.01, "unit": "nats"}
    level = [as_good_as(name, "3.2", -0.1, 0.2, **apart) for name in ("the bigram", "xz")]
    level.insert(1, as_good_as("the unigram", "3.1", -0.001, 0.002, **apart))
    assert stands(["guessing"], level, ["the best n-gram"]) == (
        "better than guessing, and about as good as the unigram (3.1), within ±0.0020 nats, and neither clearly better"
        " nor worse than the bigram (3.2; -0.10 to +0.20 nats) and xz (3.2; -0.10 to +0.20 nats), but worse than the"
        " best n-gram"
    )
