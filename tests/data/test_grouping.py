"""Copies, phrases of one text and rows of one group are on one side, so that a stated accuracy holds elsewhere."""

from pathlib import Path

import numpy as np
import pytest

from qkv.data.baseline.linear import cross_validated
from qkv.data.config import DataConfig, LabelledOptions
from qkv.data.dedup import group_copies, joined_groups, phrase_groups, sketch
from qkv.data.examples import Examples, load_examples
from qkv.data.labelled import read_labelled
from qkv.errors import SourceError
from qkv.randomness import generator


def test_phrases_join_the_text_that_they_stand_in_and_common_ones_do_not_join_texts() -> None:
    texts = [
        "the very long plot of it goes nowhere at all", "plot of it goes nowhere", "goes nowhere", "nowhere at",
        "a good film with a slow and lovely start", "a good film that ends as badly as it began", "a good film",
        "Plot of it goes NOWHERE", "ends as", "as badly",
    ]  # fmt: skip
    alone = np.arange(len(texts))
    assert phrase_groups(alone, texts).tolist() == [0, 0, 0, 0, 4, 5, 6, 0, 5, 5]


def test_a_long_phrase_of_two_texts_joins_them_and_order_matters() -> None:
    texts = ["x one of the best films y", "z one of the best films", "one of the best films", "films best the of one"]
    assert phrase_groups(np.arange(4), texts).tolist() == [0, 0, 0, 3]
    assert phrase_groups(np.arange(2), ["", "!"]).tolist() == [0, 1]


def test_phrases_are_those_that_a_plain_search_finds() -> None:
    draws = generator("tests", "grouping")
    texts = [" ".join(draws.choice(list("abcdefgh"), size=int(draws.integers(5, 14)))) for _ in range(150)]
    texts += [" ".join(text.split()[1:7]) for text in texts[::3]]
    found = phrase_groups(np.arange(len(texts)), texts)
    padded, root = [f" {text} " for text in texts], list(range(len(texts)))
    for _ in texts:
        before = list(root)
        for i, one in enumerate(padded):
            for j, other in enumerate(padded):
                if one in other:
                    root[i] = root[j] = min(root[i], root[j])
        if root == before:
            break
    assert found.tolist() == root


def test_texts_of_marks_alone_are_compared_by_their_marks_and_are_no_phrases(tmp_path: Path) -> None:
    draws, path = generator("tests", "marks"), tmp_path / "morse.tsv"
    letters = ".- -... -.-. -.. . ..-. --. .... .. .--- -.- .-.. --".split()
    texts = sorted({" ".join(draws.choice(letters, size=int(draws.integers(2, 8)))) for _ in range(300)})
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{'ab'[len(text) % 2]}\n" for text in texts))
    groups = group_copies(sketch([*texts, texts[7] + " "]))
    assert groups[-1] == 7 and len(set(groups.tolist())) > 0.9 * len(texts)
    assert phrase_groups(np.arange(3), ["wow !!!!!!", "bad !!!!!!", "!!!!!"]).tolist() == [0, 1, 2]
    data = load(path)
    assert len(data.val) >= len(texts) // 10 - 2 and len(data.weighed) > 10
    assert data.sha256 != read_labelled(DataConfig(source=str(path))).sha256
    (tmp_path / "other.tsv").write_text("text\tlabel\n" + ".-.-.-.- -\ta\n- .-.-.-.\tb\n" + f"{texts[0]}\ta\n")
    other = load(path, val=str(tmp_path / "other.tsv"))
    assert other.rule == "validation on other (1 of its 3 texts also stand in the training part)"
    assert len(other.weighed) > 10


def test_rows_of_one_name_join_their_groups() -> None:
    assert joined_groups(np.array([0, 1, 1, 3, 4]), ["a", "b", "c", "c", "a"]).tolist() == [0, 1, 1, 1, 0]


def test_a_group_column_is_read_kept_together_and_refused_where_it_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    draws = generator("tests", "groups")
    rows = [
        f"{' '.join(draws.choice(list('abcdefg'), size=8))} {i}\t{'ud'[i % 2]}\tauthor {i % 40}" for i in range(400)
    ]
    path.write_text("text\tlabel\tauthor\n" + "\n".join(rows) + "\n")
    data = load(path, group_column="author")
    sides = [{text.rsplit(" ", 1)[1] for text in part.texts} for part in (data.train, data.val)]
    authors = [{int(number) % 40 for number in side} for side in sides]
    assert len(data.val) == 40 and not authors[0] & authors[1]
    held = {int(data.train.texts[i].rsplit(" ", 1)[1]) % 40 for i in data.weighed}
    kept = {int(data.train.texts[i].rsplit(" ", 1)[1]) % 40 for i in data.trained}
    assert held and not held & kept
    assert data.rule.endswith("; rows with the same 'author' are on one side")
    assert data.receipt.as_json()["columns"] == {"text": "text", "label": "label", "author": "group"}
    with pytest.raises(SourceError, match="no column 'autor'.*did you mean 'author'"):
        load(path, group_column="autor")
    with pytest.raises(SourceError, match="--group-column and --label-column are both 'label'"):
        load(path, group_column="label")
    path.write_text("text\tlabel\twho\twho\n" + "\n".join(f"{row}\tx" for row in rows) + "\n")
    with pytest.raises(SourceError, match="has 2 columns called 'who'; give them names that differ"):
        load(path, group_column="who")


def load(path: Path, **more) -> Examples:
    config = DataConfig(source=str(path), tokenizer="word", labels=LabelledOptions(), **more)
    return load_examples(config, cache=None)


@pytest.mark.parametrize("n_texts", [1200, pytest.param(12000, marks=pytest.mark.slow)])
def test_the_stated_accuracy_of_a_table_with_copies_and_phrases_holds_on_clean_data(
    tmp_path: Path, n_texts: int
) -> None:
    """Four rows for each text (itself, in capitals, with a comma, a phrase): whoever knows one knows the others.

    A stated accuracy may differ from the clean one by three standard errors, which different texts alone can cause.
    """
    draws = generator("tests", "leaks", n_texts)
    words = [f"w{i:02}" for i in range(60)]

    def made(n: int) -> list[tuple[str, str]]:
        rows = []
        for _ in range(n):
            chosen = draws.choice(words, size=12)
            score = sum(int(word[1:]) % 7 - 3 for word in chosen) + draws.normal(0, 4)
            rows.append((" ".join(chosen), "up" if score > 0 else "down"))
        return rows

    def forms(text: str) -> list[str]:
        return [text, text.upper(), text.replace(" ", " , ", 3), text.split(" ", 1)[1]]

    rows = [(form, label) for text, label in made(n_texts) for form in forms(text)]
    path = tmp_path / "t.tsv"
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    data = load(path)
    model, clean = data.linear[0], [(forms(text)[i % 4], label) for i, (text, label) in enumerate(made(20000))]

    def accuracy(pairs: list[tuple[str, str]]) -> float:
        right = np.array(data.classes)[model.logits([text for text, _ in pairs]).argmax(1)]
        return float(np.mean(right == [label for _, label in pairs]))

    stated = accuracy([(text, data.classes[k]) for text, k in zip(data.val.texts, data.val.classes, strict=True)])
    folds = np.arange(len(data.train)) % 5
    leaky = cross_validated(data.train.texts, data.train.classes, 2, folds).argmax(1) == data.train.classes
    held = accuracy(clean)
    assert leaky.mean() > held + 0.05
    for found, n in ((stated, n_texts / 10), *([] if data.folded is None else [(data.folded.mean(), n_texts)])):
        assert abs(found - held) < 3 * (held * (1 - held) * (1 / n + 1 / len(clean))) ** 0.5
