"""What counting reaches beside every arm, the condition of a short answer, and what nobody judged."""

import dataclasses
import json
import math
import re
import types
from pathlib import Path

import numpy as np
import pytest
from answer_text import answer_text, folded_text

from qkv.data.baseline.ngrams import ngram_losses
from qkv.models.layout import Sizes
from qkv.studies.counting import baselines_of, compared, counting_words, gate, yardstick
from qkv.studies.engine.design import Design, Text
from qkv.studies.expectation import OUTCOMES
from qkv.studies.question import Ask
from qkv.studies.questions import find, questions
from qkv.studies.synthetic.streams import corpus
from qkv.studies.synthetic.tasks import Recall
from qkv.studies.verdict.sentences import judged_again
from qkv.tasks import find_task
from qkv.views.study.section import as_shown

DOCS = Path(__file__).parent.parent.parent / "docs"
RESULTS = {path.stem: json.loads(path.read_text("utf-8")) for path in (DOCS / "answers" / "results").glob("*.json")}


def design_of(name: str) -> Design:
    kept = RESULTS[name]
    source = kept["source"]
    more = {key: source[key] for key in ("labelled", "vectors") if key in source}
    more |= {"images": tuple(source["images"])} if "images" in source else {}
    named = (source["name"], source["sha256"])
    ask = Ask(named=named, quick=kept["quick"], seeds=kept["replicates"], tuned="untuned" not in source, **more)
    return find(kept["study"]).design(ask)


def anew(name: str) -> dict:
    return judged_again(find(RESULTS[name]["study"]), RESULTS[name])


@pytest.mark.parametrize(
    ("name", "trained", "ngram"),
    [
        ("which-matrix-full", 1.971, 1.480),
        ("frozen-embeddings-full", 3.292, 2.714),
        ("what-is-trained-full", 3.611, 3.210),
    ],
)
def test_counting_is_scored_on_the_very_tokens_that_the_arms_are(name, trained, ngram, tinyshakespeare, kept):
    found = RESULTS[name]["baseline"]
    assert (round(found["trained"], 3), round(found["ngram"], 3)) == (trained, ngram)
    design = design_of(name)
    made = baselines_of(design, lambda text: [corpus(text, str(tinyshakespeare), design.scale.val_tokens, kept)])
    kept_rows = RESULTS[name]["baselines"]
    assert [{**row, "nats": 0} for row in made] == [{**row, "nats": 0} for row in kept_rows]
    assert [row["nats"] or 0 for row in made] == pytest.approx([row["nats"] or 0 for row in kept_rows], rel=1e-9)
    text = dict(design.texts)[design.arm(found["arm"]).text]
    read = corpus(text, str(tinyshakespeare), design.scale.val_tokens, kept)
    *_, nats = ngram_losses(read.train.ids, read.val.ids, read.tokenizer.d_vocab, found["order"])
    assert nats.mean() == pytest.approx(found["ngram"], rel=1e-9) and len(nats) == found["tokens"]


@pytest.mark.parametrize("name", RESULTS)
def test_every_kept_run_says_what_counting_knows_first_and_beside_each_arm(name):
    verdict = anew(name)
    words, text = counting_words(verdict), answer_text(verdict)
    assert words and words in text.splitlines()
    page = (DOCS / "answers" / f"{verdict['study']}.md").read_text("utf-8")
    first = anew(name.replace("-quick", "-full") if name.replace("-quick", "-full") in RESULTS else name)
    if name == f"{verdict['study']}-full":
        begun = gate(first["baseline"])
        answer = first["plain"].removeprefix(begun).strip()
        told = [*([begun, ""] if begun else []), f"**{answer}** {first['brief']}"]
        assert page.splitlines()[3 : 3 + len(told)] == told and counting_words(first) in page
        assert first["plain"].startswith(gate(first["baseline"]))
    known = {(row["task"], row["text"]): row for row in verdict["baselines"]}
    for arm in (arm for arm in verdict["arms"] if arm["trainings"]):
        row = known[arm["task"], arm["text"]]
        assert ("order" in row) == (arm["task"] == "causal") and yardstick(verdict, arm) in folded_text(verdict)
    found = verdict["baseline"]
    if found["trained"] is not None:
        (arm,) = [arm for arm in verdict["arms"] if arm["name"] == found["arm"]]
        assert found["trained"] == arm["loss"] and found["ngram"] == known[arm["task"], arm["text"]]["nats"]
        per, what = (" per token", "the best n-gram") if "order" in found else ("", found["what"])
        assert f"{found['trained']:.2f} nats{per} against {found['ngram']:.2f} for {what}" in words
        whole = gate(found).startswith("These models predict worse than counting (")
        assert whole == (found["trained"] >= found["ngram"])
        assert bool(gate(found)) == any(one["trained"] >= one["ngram"] for one in (found, *found.get("also", ())))
        assert words.count(" beat") == 1 + len(found.get("also", ()))


def test_the_arm_beside_counting_is_trained_on_real_next_tokens_of_the_main_text():
    design = design_of("what-is-trained-full")
    rows = [{"task": "causal", "text": "text", "nats": 3.0, "order": 4, "tokens": 9, "what": ""}]
    losses = {"adamw": 3.5, "adamw null": 2.0, "sgd": 2.9, "muon": None}
    found = compared(design, rows, losses)
    assert found == {"ngram": 3.0, "trained": 3.5, "arm": "adamw", "order": 4, "tokens": 9, "better": 1, "of": 2}
    assert compared(design, rows, dict.fromkeys(losses)) == {"ngram": 3.0, "trained": None}
    pairs = design_of("collocation-full")
    both = [{**rows[0], "text": text} for text in ("text", "pairs")]
    assert compared(pairs, both, {"own text": 1.0, "causal": 2.0, "untrained": 0.1})["arm"] == "causal"


@pytest.mark.parametrize(("keys", "values"), [(8, 8), (5, 3)])
def test_counting_of_recall_is_what_striking_out_the_values_told_costs(keys, values):
    draws, costs = np.random.default_rng(3), []
    for _ in range(4000):
        left = np.bincount(draws.integers(values, size=keys), minlength=values)
        for n in range(keys, 0, -1):
            value = draws.choice(values, p=left / n)
            costs.append(math.log(n / left[value]))
            left[value] -= 1
    assert Recall(keys=keys, values=values).by_counting == pytest.approx(np.mean(costs), abs=0.02)


def test_made_tasks_and_images_have_what_counting_reaches_on_what_they_are_scored_on():
    for kept, task, nats in (
        ("only-embeddings-full", "recall", 1.0511),
        ("only-embeddings-full", "modular", math.log(97)),
        ("dynamics-full", "repeat", math.lgamma(7) / 6),
        ("words-or-pixels-digits-full", "image", 0.3527),
    ):
        design = design_of(kept)
        arms = tuple(arm for arm in design.arms if arm.task == task)
        asked = types.SimpleNamespace(texts=design.texts, arms=arms, scale=design.scale)
        text = dict(design.texts).get("pixels")
        parts = design.scored(text) if text else ()
        made = [corpus(text, "", design.scale.val_tokens, None, part) for part in parts]
        (row,) = baselines_of(asked, lambda text, made=made: made)
        assert row["nats"] == pytest.approx(nats, abs=1e-4) and ("0 is possible" in row["what"]) == (task != "image")


def test_slices_on_which_counting_stops_at_other_orders_are_averaged_over_the_orders_of_all(monkeypatch):
    losses = {"a": (3.0, 2.0, 2.5, 2.6), "b": (3.2, 2.4, 1.9, 2.2, 2.3)}
    monkeypatch.setattr("qkv.studies.counting.ngram_losses_by_order", lambda made: losses[made.name])
    slices = [
        types.SimpleNamespace(
            name=name, train=[0] * 50, val=[0] * 11, tokenizer=types.SimpleNamespace(d_vocab=4)
        ) for name in losses
    ]  # fmt: skip
    design = types.SimpleNamespace(
        texts=(("text", Text(tokenizer="char")),),
        arms=(types.SimpleNamespace(task="causal", text="text"),),
        scale=types.SimpleNamespace(n_ctx=16),
    )
    (row,) = baselines_of(design, lambda text: slices)
    assert row["order"] == 2 and row["nats"] == pytest.approx(2.2) and row["tokens"] == 20


def test_hidden_tokens_are_compared_with_an_ngram_that_reads_both_sides(small_text):
    """It is the baseline of a training with hidden tokens, on the same tokens."""
    text = Text(tokenizer="char")
    made = corpus(text, str(small_text), 0, None)
    design = types.SimpleNamespace(
        texts=(("text", text),),
        arms=(types.SimpleNamespace(task="masked", text="text"),),
        scale=types.SimpleNamespace(n_ctx=16),
    )
    (row,) = baselines_of(design, lambda text: [made, made])
    task = find_task("masked")
    sizes = Sizes(**task.model_sizes(made), d_model=16, n_layers=1, n_heads=1, n_ctx=16)
    known = task.baselines(made, sizes, None).nats
    assert (
        row["nats"] == pytest.approx(min(known["unigram"], known["ngram"]), rel=1e-12) and "both sides" in row["what"]
    )


def test_other_tasks_than_the_main_one_are_compared_by_their_best_model():
    design = design_of("dynamics-full")
    rows = [
        {"task": "repeat", "text": "repeat", "nats": 1.1, "what": "counting the letters; 0 is possible"},
        {"task": "causal", "text": "text", "nats": 1.5, "order": 6, "tokens": 9, "what": ""},
    ]
    losses = {"nothing held": 0.1, "text, nothing held": 1.9, "text, QK held": 1.7}
    found = compared(design, rows, losses)
    assert (found["arm"], found["trained"], found["what"]) == ("nothing held", 0.1, "counting the letters")
    (text,) = found["also"]
    assert (text["arm"], text["trained"], text["better"], text["of"]) == ("text, QK held", 1.7, 0, 2)
    assert gate(found) == (
        "Its models predict some things worse than counting: next tokens (1.70 nats per token against 1.50 for the"
        " best n-gram)."
    )
    assert counting_words({"baseline": found}) == (
        "For repeated letters, the trained model beats counting: 0.10 nats against 1.10 for counting the letters. None"
        " of 2 trained models beats the best n-gram. On the same 9 tokens: 1.70 nats per token against 1.50 for the"
        " best n-gram, of order 6."
    )


@pytest.mark.parametrize(
    ("better", "of", "words"),
    [
        (
            0,
            1,
            "The trained model does not beat the best n-gram. On the same 1,000 tokens: 2.00 nats per token",
        ),
        (1, 1, "The trained model beats the best n-gram."),
        (0, 3, "None of 3 trained models beats the best n-gram."),
        (1, 3, "1 of 3 trained models beats the best n-gram."),
        (3, 3, "3 of 3 trained models beat the best n-gram."),
    ],
)
def test_models_are_compared_with_counting_in_words(better, of, words):
    found = {"ngram": 1.5, "trained": 2.0, "arm": "a", "order": 3, "tokens": 1000, "better": better, "of": of}
    assert counting_words({"baseline": found}).startswith(words)
    assert "No counting baseline applies" in counting_words({"baseline": {"ngram": None, "trained": None}})


def test_an_answer_begins_with_what_its_models_do_not_know():
    found = {"ngram": 1.48, "trained": 1.97, "arm": "a", "order": 3, "tokens": 1000, "better": 0, "of": 1}
    assert gate(found) == (
        "These models predict worse than counting (1.97 nats per token against 1.48 for the best n-gram), so this"
        " answer is about models that have not yet learned the text."
    )
    assert "2.0001 nats per token against 2.0000" in gate(found | {"trained": 2.0001, "ngram": 2.0})
    passed = [found | {"trained": 1.2}, {"ngram": None, "trained": None}, {"ngram": 1.5, "trained": None}]
    assert [gate(each) for each in passed] == ["", "", ""]


@pytest.mark.parametrize("name", RESULTS)
def test_every_short_answer_states_recipe_size_steps_text_and_replicates(name):
    verdict, design = anew(name), design_of(name)
    words = verdict["condition"]
    arms = [design.arm(arm) for arm in design.primary.arms]
    sizes = [dataclasses.replace(design.scale, **dict(arm.sizes)) for arm in arms]
    for size in sizes:
        assert re.search(rf"\b{size.n_layers} layers?\b|\d to \d layers|\d and \d layers", words)
        assert f"d_model {size.d_model}" in words or "d_model " in words
    assert " steps" in words and "AdamW" in words and "million tokens" in words or "tokens)" in words
    assert (
        verdict["source"]["name"] in words or "generated sentences" in words or "images" in words or "digits" in words
    )
    assert re.search(r"\d of [\d,]+ (paired replicates over seeds( on one text)?|small studies)\.", words)
    assert "may not hold" in words or "not to hold" in words
    if not verdict["quick"]:
        assert words in (DOCS / "answers" / f"{verdict['study']}.md").read_text("utf-8")


def test_what_reverses_in_the_default_model_is_told_with_the_figures_of_a_kept_run():
    demo = json.loads((DOCS / "answers" / "demo.json").read_text("utf-8"))
    m, half = demo["measures"], demo["half_way"]
    size = f"{demo['n_layers']} layers, d_model {demo['d_model']}, untied, Muon"
    assert (demo["start_of_matrices"], demo["optimizer"]) == ("zero_out", "muon")
    told = {q.name: q.elsewhere for q in questions().values() if q.elsewhere}
    assert set(told) == {"gradient-path", "token-identity", "collocation", "what-moved-q"}
    assert "not to hold" not in told["collocation"], "the commonest word is lower there too"
    new = json.loads((DOCS / "answers" / "new-texts.json").read_text("utf-8"))
    lower = [run["headlines"][new["withdrawn"]][0] < 0 for run in new["runs"]]
    assert f"each of {len(lower)} other texts" in told["collocation"] and f"in {sum(lower)}." in told["collocation"]
    for words in told.values():
        assert size in words and f"{demo['steps']} steps of {demo['batch_size']} windows" in words
    path = told["gradient-path"]
    assert (
        f"{m['around']:.0%} of the gradient bypasses all layers" in path
        and f"{m['L0.resid_pre skip']:.0%} comes past" in path.replace("\n", " ")
    )
    assert f"{m['L0.resid_pre V']:.0%} through its v and {m['L0.resid_pre K']:.0%} through its k" in path
    steps = {kind: round(step) for kind, step in half.items()}
    assert f"step {steps['W_O']}, W_V at {steps['W_V']}, W_K at {steps['W_K']} and W_Q at {steps['W_Q']}" in path
    assert (
        m["nearest 1"] == m["nearest 0"] == 100.0
        and "identifies 100% of the tokens after layer 1" in told["token-identity"]
    )
    rows = {row["name"]: row for row in RESULTS["token-identity-full"]["contrasts"]}
    assert f"{-rows['nearest 1 - 0 (untrained)']['effect']:.1f} percentage points fewer" in told["token-identity"]
    word, others = m["dot of the word"], m["dot of the word"] - m["dot of the word over others"]
    assert f"all others is {word:.2f} and that of other tokens {others:.2f}" in told["collocation"]
    moved = told["what-moved-q"]
    assert f"cause {m['L0.q encodings']:.0%} of the change" in moved and f"alone {m['L0.q matrix']:.0%}, and" in moved
    assert f"{m['L0.q both']:.0%} needs both" in moved and f"scores, {m['L0.scores both']:.0%} needs both" in moved


def test_a_short_answer_that_reverses_elsewhere_says_that_it_is_of_this_recipe():
    for name, words in {
        "gradient-path": ("in a trained model of this recipe", "In this recipe, under AdamW, W_Q and W_K"),
        "token-identity": ("With this recipe's small rows",),
        "collocation": ("In this recipe, the commonest word",),
        "what-moved-q": ("In this recipe, under AdamW, queries",),
    }.items():  # fmt: skip
        verdict = anew(f"{name}-full")
        assert [each for each in words if each not in f"{verdict['plain']} {verdict['more']}"] == []
        assert find(name).elsewhere in verdict["condition"]


def test_every_expectation_of_a_kept_run_is_judged_and_every_failed_one_is_on_its_page():
    outcomes = []
    for name, kept in RESULTS.items():
        verdict = anew(name)
        stated = [row for row in verdict["contrasts"] if row["expected"]]
        outcomes += [row["outcome"] for row in stated]
        failed = [row["name"] for row in stated if row["outcome"] == "failed"]
        assert verdict["otherwise"] == failed and all(row["outcome"] in OUTCOMES for row in stated)
        page = (DOCS / "answers" / f"{kept['study']}.md").read_text("utf-8")
        whats = {row["name"]: row["what"] for row in stated}
        assert [each for each in failed if f"Failed: {whats[each]}, " not in page] == []
        shown = sum(bool(row["expected"]) for row in as_shown(verdict)["contrasts"])
        assert not shown or f"Expectations stated before training ({shown}): {len(failed)} failed, " in page
    met, failed, left = (outcomes.count(outcome) for outcome in OUTCOMES)
    told = (
        f"Of {len(outcomes)} expectations stated before training, {met} were met, {failed} failed and {left} are open"
    )
    for page in (DOCS / "answers" / "README.md", DOCS / "studies.md"):
        assert told in " ".join(page.read_text("utf-8").split())


def test_what_the_page_on_studies_says_of_rates_and_of_the_control_is_what_the_kept_runs_have():
    page = " ".join((DOCS / "studies.md").read_text("utf-8").split())
    points = []
    for name, kept in RESULTS.items():
        tuned = {arm.name for arm in design_of(name).arms if arm.tune == "own"}
        points += [len(set(arm["rates"])) for arm in kept["arms"] if arm["name"] in tuned and len(arm["rates"]) > 1]
    told = f"of the {len(points)} tuned arms in the kept runs {points.count(1)} chose the same grid point in all their"
    assert f"{told} replicates, {points.count(2)} one of two" in page
    assert "where the interval sees it" not in page and "The interval leaves out" in page
    control = next(arm for arm in RESULTS["what-is-trained-full"]["arms"] if arm["name"] == "adamw null")
    assert f"ends at {control['loss']:.3f} nats per token, {math.log(1024) - control['loss']:.2f} below" in page


def test_the_control_is_never_said_to_have_nothing_to_learn():
    """Its labels keep the frequencies of tokens, and it learns those."""
    pages = [DOCS / "studies.md", *(DOCS / "answers").glob("*.md"), DOCS.parent / "README.md"]
    code = (DOCS.parent / "src" / "qkv" / "studies").rglob("*.py")
    said = re.compile(
        r"nothing (can|could) (be learned|tell)|no (input|one) can\s+tell|only what differs from random labels"
    )
    assert [path.name for path in (*pages[:-1], *code) if said.search(path.read_text("utf-8"))] == []
    table = pages[-1].read_text("utf-8").partition("<!-- answers")[2].partition("<!-- end of answers")[0]
    assert table and not said.search(table)
    design = find("what-is-trained").design(Ask(named=("a text", "0" * 64)))
    assert all("random labels" in arm.what for arm in design.arms if arm.labels == "random")
