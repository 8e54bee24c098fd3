"""What a training says of itself at its end, beside what needs no Transformer."""

import re
from types import SimpleNamespace

import pytest

from qkv import cli
from qkv.commands.printing.gradient_table import row_address
from qkv.commands.printing.outcome import _example, loss_rows
from qkv.inspection.answers.loss import _higher
from qkv.tasks import find_task, standing
from qkv.tokenizers.tokenizer import fit_tokenizer


@pytest.mark.parametrize(
    ("own", "interval", "other", "expected"),
    [
        (0.59, (0.43, 0.73), 0.56, "level"),
        (0.59, (0.57, 0.61), 0.56, "better"),
        (0.50, (0.45, 0.55), 0.56, "worse"),
        (1.0, None, 1.0, "level"),
    ],
)
def test_a_figure_stands_beside_another_by_its_interval(own, interval, other, expected):
    assert standing(own, interval, other, higher_is_better=True) == expected
    mirrored = interval and (1 - interval[1], 1 - interval[0])
    assert standing(1 - own, mirrored, 1 - other, higher_is_better=False) == expected


def test_the_run_stands_among_its_baselines_by_the_metric_of_its_task():
    summary = {"val_loss": 0.5, "accuracy": 0.83, "accuracy_interval": (0.80, 0.86)}
    summary |= {"baselines": {"majority": 0.51, "tfidf": 0.84}, "baselines_nats": {"majority": 0.69, "tfidf": 0.49}}
    names = [row[0] for row in loss_rows(summary, find_task("classify"))]
    assert names == ["the commonest class", "this model", "TF-IDF + logistic regression"]


def test_a_baseline_with_a_lower_loss_is_not_beaten_in_both_figures():
    summary = {"val_loss": 0.60, "accuracy": 0.83, "accuracy_interval": (0.82, 0.84)}
    summary |= {"baselines": {"majority": 0.10, "linear": 0.80}, "baselines_nats": {"majority": 2.3, "linear": 0.55}}
    image = find_task("image")
    assert _higher(image, summary) == (
        " Its loss is higher than that of the linear model (logistic regression on pixels) (0.550 nats)."
    )
    assert _higher(image, summary | {"val_loss": 0.5}) == ""


def sample(prompt):
    return SimpleNamespace(prompt=prompt)


@pytest.mark.parametrize(
    ("task", "prompts", "expected"),
    [
        ("causal", ["Собака спит дома, а"], "Собака спит дома, а"),
        ("causal", ["犬は家で寝ています。" * 20], "犬は家で寝ています。" * 8),
        ("causal", ["one two\n three\x00four"], "one two three"),
        ("causal", [], "The "),
        ("masked", ["a [MASK] b", "no gap"], "a [MASK] b"),
        ("masked", ["word " * 30 + "[MASK]"], "the [MASK] of"),
        ("translate", ["犬は家で寝ています。", "猫。"], "猫。"),
        ("translate", ["word " * 30], ("word " * 16).strip()),
    ],
)
def test_what_is_proposed_to_predict_is_of_the_run_s_own_text(task, prompts, expected):
    run = SimpleNamespace(task=find_task(task))
    assert _example(run, [sample(prompt) for prompt in prompts]) == expected


def test_it_is_said_where_the_best_views_are(tmp_path, small_text, capsys):
    words = "--tokenizer char --steps 2 --threads 1 --set d_model=16,n_layers=1,n_heads=1,n_ctx=16".split()
    for report in (True, False):
        out = str(tmp_path / f"run-{report}")
        assert cli.main(["train", str(small_text), *words, "--out", out, *([] if report else ["--no-report"])]) == 0
        lines = capsys.readouterr().out.partition("Next:  ")[2].splitlines()
        asked = [line.partition(out)[0].strip() for line in lines]
        assert asked == ["qkv show", "qkv view", *([] if report else ["qkv report"]), "qkv predict"]


def test_a_table_has_no_empty_column(tmp_path, small_text, capsys):
    words = "--task masked --steps 2 --no-report --watch off --threads 1 --set d_model=16,n_layers=1,n_heads=1".split()
    assert cli.main(["train", str(small_text), *words, "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "accuracy" not in said and "\n\n\n" not in said
    assert re.search(r"validation loss +nats per token\nthis model +[\d.]+\n", said)


def test_a_rows_address_means_that_row():
    tokenizer = fit_tokenizer("bpe", ["the cat at the hat, bathe that hat; theatre the the at"] * 30, 300)
    named = {row_address(i, tokenizer): i for i in range(tokenizer.d_vocab)}
    assert len(named) == tokenizer.d_vocab
    for address, i in named.items():
        number = re.match(r"W_E\[(\d+)\] '", address)
        assert int(number[1]) == i if number else tokenizer.readable[address[4:-1]] == i


def test_a_run_in_which_nothing_moved_is_shown(tmp_path, small_text, capsys):
    sizes = "d_model=16,n_layers=1,n_heads=1,n_ctx=16,optimizer.lr=1e-30,optimizer.weight_decay=0"
    words = f"--tokenizer char --preset textbook --only L0.W_Q --steps 64 --threads 1 --json --set {sizes}".split()
    assert cli.main(["train", str(small_text), *words, "--out", str(tmp_path / "still")]) == 0
    capsys.readouterr()
    assert cli.main(["show", str(tmp_path / "still"), "--all"]) == 0
    assert "drift is exactly 0" in capsys.readouterr().out


def test_a_training_that_ends_worse_than_knowing_nothing_says_so(tmp_path, small_text, capsys):
    sizes = "d_model=16,n_layers=1,n_heads=1,n_ctx=16,lr=5,muon_lr=2"
    words = f"--tokenizer char --steps 40 --threads 1 --on-spike ignore --set {sizes}".split()
    assert cli.main(["train", str(small_text), *words, "--out", str(tmp_path / "wild")]) == 0
    said = capsys.readouterr().out
    assert "That is worse than uniform guessing" in said and "rate: --set lr=0.5 --set muon_lr=0.2" in said
    assert cli.main(["show", str(tmp_path / "wild"), "--all"]) == 0
    said = capsys.readouterr().out
    assert "That is worse than uniform guessing: the learning rate may be too high." in said
    assert re.search(r"the median row of W_E moved by [\d,]+ times its initial norm", said)


@pytest.mark.parametrize(("target", "missed"), [("0.01", True), ("9", False)])
def test_a_target_that_was_not_reached_is_told(target, missed, tmp_path, small_text, capsys):
    words = f"--tokenizer char --steps 12 --until-loss {target} --threads 1 --set d_model=16,n_layers=1".split()
    assert cli.main(["train", str(small_text), *words, "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert ("did not reach the target of 0.01 (try --steps 24)" in said) == missed
    assert ("it reached the target loss" in said) != missed


def test_a_validation_text_of_other_tokens_is_not_laid_on_the_learning_rate(tmp_path, small_text, capsys):
    (tmp_path / "other.txt").write_text("zyxwvuqZYXWVU " * 300)
    (tmp_path / "train.txt").write_text(small_text.read_text() + "zyxwvuqZYXWVU ")
    sizes = "d_model=16,n_layers=1,n_heads=1,n_ctx=16"
    words = f"--tokenizer char --steps 40 --no-report --watch off --threads 1 --set {sizes}".split()
    where = [str(tmp_path / "train.txt"), "--val", str(tmp_path / "other.txt"), "--out", str(tmp_path / "run")]
    assert cli.main(["train", *where, *words]) == 0
    said = capsys.readouterr().out
    assert "the validation text is unlike the training text" in said and "learning rate" not in said


def test_a_training_that_diverges_ends_and_is_not_resumed(small_text, tmp_path, capsys):
    how = "--preset textbook --tokenizer char --steps 60 --threads 1 --no-report --out".split()
    sets = ["--set", "d_model=16,n_layers=1,n_ctx=16,batch_size=4,lr=5000,clip=0"]
    assert cli.main(["train", str(small_text), *how, str(tmp_path / "run"), *sets]) == 1
    assert "it diverged" in (said := capsys.readouterr().out) and "train again with a lower rate" in said
    assert cli.main(["train", "--out", str(tmp_path / "run"), "--resume"]) in (0, 1)
    assert "is finished; nothing is left to do" in "".join(capsys.readouterr())
