"""F1 and exact match of answers in generated texts that were not trained on, beside those of logistic regression.

    python tests/campaigns/answers.py --minutes 1 --seeds 3
    python tests/campaigns/answers.py --texts 2000 --write facts        # facts-train.jsonl and facts-test.jsonl alone

A text tells of three to five persons: where and when each was born, what they studied, where they worked, whom they
met and what they wrote, in sentences of several forms and in any order, about a person by name or, where the sentence
before was about the same one, by a pronoun. A question asks one fact of one person in words that are often other than
those of the text. So the same text has other answers to other questions, and most names of a test text are new ones.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from command import fresh, machine, qkv

from qkv.data.baseline.spans import fit_spans, span_scores
from qkv.data.baseline.words import runs_of
from qkv.data.config import DataConfig
from qkv.tasks import find_task
from qkv.tasks.labels.answer import best_spans

_VOWELS, _CONSONANTS = list("aeiou"), list("bdfgklmnprstvz")
_FIELDS = "algebra botany chemistry law medicine music optics painting physics history geology logic".split()
_MONTHS = "January March April June July August October December".split()
_FORMS = {
    "birthplace": (["{who} was born in {x}.", "{who} came from {x}.", "The birthplace of {name} is {x}."],
                   ["Where was {name} born?", "What is the birthplace of {name}?", "In which town was {name} born?"]),
    "birth": (["{who} was born on {x}.", "The birth of {name} was on {x}.", "{who} came into the world on {x}."],
              ["When was {name} born?", "On what date was {name} born?", "When is the birthday of {name}?"]),
    "study": (["{who} studied {x}.", "{who} took a degree in {x}.", "{who} read {x} at the university."],
              ["What did {name} study?", "Which subject did {name} study?", "In what did {name} take a degree?"]),
    "work": (["{who} worked in {x}.", "{who} found a post in {x}.", "Later {who} taught in {x}."],
             ["Where did {name} work?", "In which town did {name} work?", "Where did {name} find a post?"]),
    "death": (["{who} died in {x}.", "{who} spent the last years in {x}.", "{who} was buried in {x}."],
              ["Where did {name} die?", "In which town did {name} die?", "Where was {name} buried?"]),
    "met": (["{who} met {x}.", "{who} was a friend of {x}.", "{who} wrote letters to {x}."],
            ["Whom did {name} meet?", "Who was a friend of {name}?", "To whom did {name} write?"]),
    "book": (['{who} wrote "{x}".', '{who} published "{x}" in {year}.', 'The best book of {name} is "{x}".'],
             ["What did {name} write?", "Which book did {name} publish?", "What is the best book of {name}?"]),
}  # fmt: skip
Row = dict[str, object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=600, help="training texts, each with three questions")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--steps", type=int, help="updates, instead of minutes")
    parser.add_argument("--set", action="append", default=[], help="passed on to qkv train")
    parser.add_argument("--write", help="write the rows of the first seed under this name, and train nothing")
    args = parser.parse_args()
    if args.write:
        for part, n, seed in (("train", args.texts, 1), ("test", 300, 0)):
            written(Path(f"{args.write}-{part}.jsonl"), rows(n, seed))
        return
    print(machine())
    for seed in range(1, args.seeds + 1):
        print(measured(args, seed), flush=True)


def measured(args: argparse.Namespace, seed: int) -> str:
    """One training, a line."""
    folder = fresh()
    train, test = folder / "train.jsonl", folder / "test.jsonl"
    written(train, rows(args.texts, seed))
    written(test, rows(300, 0))
    words = ["--task", "answer", "--val", str(test), "--seed", str(seed), "--no-report"]
    words += ["--steps", str(args.steps)] if args.steps else ["--minutes", str(args.minutes)]
    words += [word for value in args.set for word in ("--set", value)]
    seconds, made = qkv("train", str(train), *words, "--out", str(folder / "run"))
    found = [f"seed {seed}, {seconds:.0f} s, {made['steps']:,} updates"]
    figures = {name: (made[name], made[f"{name}_interval"]) for name in ("answer_f1", "exact_match")}
    found.append(f"model: {told(figures)}")
    found.append(f"logistic regression, as printed: answer_f1 {made['baselines']['linear']:.1%}")
    task, began = find_task("answer"), time.process_time()
    data = task.load(DataConfig(source=str(train), val=str(test), tokenizer="word"), cache=None)
    texts, asked = ([part.words[a:b] for a, b in runs_of(part.owners)] for part in (data.train, data.val))
    spans = best_spans(span_scores(fit_spans(texts, data.train.ends), asked), data.val.owners)
    again = {name: one[:2] for name, one in task._scored(spans, data.val).items()}
    found.append(
        f"fitted to all {len(texts):,} questions, {time.process_time() - began:.0f} s of a core: {told(again)}"
    )
    return "; ".join(found)


def told(figures: dict) -> str:
    """Figures with their 95% intervals over texts."""
    return ", ".join(f"{name} {value:.1%} ({low:.1%} to {high:.1%})" for name, (value, (low, high)) in figures.items())


def written(path: Path, found: list[Row]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")


def rows(n_texts: int, seed: int) -> list[Row]:
    """Three questions about each text."""
    draws, found = np.random.default_rng(seed), []
    for _ in range(n_texts):
        text, facts = text_of(draws)
        for i in draws.choice(len(facts), 3, replace=False):
            kind, name, answer, start = facts[i]
            question = str(draws.choice(_FORMS[kind][1])).format(name=name)
            found.append({"question": question, "context": text, "answer": {"text": answer, "answer_start": start}})
    return found


def text_of(draws: np.random.Generator) -> tuple[str, list[tuple[str, str, str, int]]]:
    """A text, and each of its facts: kind, person, answer and its first character."""
    people = [name_of(draws) for _ in range(draws.integers(3, 6))]
    told = [(name, kind) for name in people for kind in draws.choice(list(_FORMS), draws.integers(2, 5), replace=False)]
    if draws.random() < 0.5:
        told = [told[i] for i in draws.permutation(len(told))]
    text, facts, last = "", [], ""
    for name, kind in told:
        form = str(draws.choice(_FORMS[kind][0]))
        who = str(draws.choice(["He", "She"])) if name == last and draws.random() < 0.5 else name
        who = who.lower() if form.startswith("Later") and who != name else who
        answer, before = value_of(draws, kind, people, name), text + " " * bool(text)
        sentence = form.format(who=who, name=name, x="\0", year=draws.integers(1600, 1950))
        start = len(before) + sentence.index("\0")
        text, last = before + sentence.replace("\0", answer), name
        facts.append((str(kind), name, answer, start))
    return text, facts


def value_of(draws: np.random.Generator, kind: str, people: list[str], name: str) -> str:
    if kind == "birth":
        return f"{draws.integers(1, 29)} {draws.choice(_MONTHS)} {draws.integers(1600, 1950)}"
    if kind == "study":
        return str(draws.choice(_FIELDS))
    if kind == "met":
        return str(draws.choice([one for one in people if one != name])) if draws.random() < 0.5 else name_of(draws)
    if kind == "book":
        return f"The {word(draws)} of {word(draws)}"
    return word(draws)


def name_of(draws: np.random.Generator) -> str:
    return f"{word(draws)} {word(draws)}"


def word(draws: np.random.Generator) -> str:
    """One that hardly another text has."""
    n = int(draws.integers(2, 4))
    return "".join(str(draws.choice(_CONSONANTS)) + str(draws.choice(_VOWELS)) for _ in range(n)).capitalize()


if __name__ == "__main__":
    main()
