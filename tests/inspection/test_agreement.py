"""Each headline of a study agrees with a run that bears it out, and differs from one that does not; both are said."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import qkv
from qkv.inspection.answers.agreement import CLAIMS, DEFAULT_CLAIMS, KEPT, agreement, checks, passes
from qkv.inspection.answers.answer import Evidence
from qkv.inspection.answers.reading import read
from qkv.instruments.probe import spread_windows
from qkv.telemetry import AddressRow

DOCS = Path(__file__).parent.parent.parent / "docs"
STUDIES = json.loads(KEPT.read_text("utf-8"))


def check(run, contrast):
    """The check of a headline against a made run."""
    with run.telemetry() as telemetry:
        return next(c for c in checks(Evidence(run.path, telemetry)) if c.claim.contrast == contrast)


def test_every_headline_has_its_number_and_condition():
    for claim in (*CLAIMS, *DEFAULT_CLAIMS):
        kept = STUDIES[claim.study]
        effect = kept["contrasts"][claim.contrast]["effect"]
        optimizer = "muon" if claim in DEFAULT_CLAIMS else "adamw"
        assert kept["condition"] and kept["arms"][claim.arm]["optimizer"] == optimizer
        assert claim.agrees(effect, effect), "a study agrees with itself"


def test_every_headline_of_the_default_recipe_held_on_texts_that_no_study_saw():
    """So what was withdrawn is no headline, and what is one agreed in at least nine of ten runs."""
    kept = json.loads((DOCS / "answers" / "new-texts.json").read_text("utf-8"))
    assert len(kept["runs"]) == 20 and kept["withdrawn"] not in {claim.words for claim in DEFAULT_CLAIMS}
    for claim in DEFAULT_CLAIMS:
        read = [run["headlines"][claim.words] for run in kept["runs"]]
        agree = [claim.agrees(here, there) for here, there, _ in read]
        assert sum(agree) >= 18 and agree == [verdict == "agrees" for _, _, verdict in read], claim.words


def test_the_page_and_the_finding_say_by_which_rule_a_headline_was_withdrawn_and_how_many_texts_have_its_sign():
    kept = json.loads((DOCS / "answers" / "new-texts.json").read_text("utf-8"))
    read = [run["headlines"][kept["withdrawn"]] for run in kept["runs"]]
    half = [here / there >= 0.5 for here, there, _ in read]
    assert half == [verdict == "agrees" for _, _, verdict in read], "half of the study's number was the rule"
    lower = sum(here < 0 for here, _, _ in read)
    pages = [(DOCS / name).read_text("utf-8") for name in ("answers/default-recipe.md", "finding.md")]
    page, finding = (" ".join(text.split()) for text in pages)
    assert f"below 0 in {lower} of 20 texts, but at least half as large as in the study in only {sum(half)}." in page
    assert f"below 0 in {lower} of 20 texts, but at least half of the study's in only {sum(half)}" in finding
    rules = [re.search(rf"^\| {claim.words} \| .*", pages[0], flags=re.M)[0] for claim in DEFAULT_CLAIMS]
    for claim, row in zip(DEFAULT_CLAIMS, rules, strict=True):
        least = f"same sign, at least {claim.least:.0%} of it" if claim.least else "same sign"
        assert f"| {f'within ±{claim.within:g}' if claim.within else least} |" in row


def test_the_size_on_a_new_text_is_inside_the_interval_of_the_first_texts_in_nine_of_ten():
    kept = json.loads((DOCS / "answers" / "new-texts.json").read_text("utf-8"))
    first, inside = kept["decided_on"], []
    for claim in DEFAULT_CLAIMS:
        values = np.array([run["headlines"][claim.words][0] for run in kept["runs"]])
        reach = values[:first].std(ddof=1) * np.sqrt(1 + 1 / first) * 2.364624  # Student's t, 7 degrees, 97.5%
        inside += list(abs(values[first:] - values[:first].mean()) <= reach)
    page = (DOCS / "answers" / "default-recipe.md").read_text("utf-8")
    assert len(inside) == 72 and np.mean(inside) >= 0.9
    assert f"It held in {sum(inside)} of 72 comparisons" in " ".join(page.split())


DEFAULT = '[training.optimizer]\nkind = "muon"\nweight_decay = 0.0\n[model.layout]\nstart = "zero_out"\n'
PASSED = [claim for claim in (*CLAIMS, *DEFAULT_CLAIMS) if claim.passed]


@pytest.mark.parametrize("claim", PASSED, ids=lambda claim: f"{claim.study}: {claim.contrast}")
@pytest.mark.parametrize("agrees", [True, False])
def test_what_passes_through_the_model_give_is_compared(made, claim, agrees):
    there = STUDIES[claim.study]["contrasts"][claim.contrast]["effect"]
    here = 0.8 * there if agrees else 6 * claim.within if claim.within else 0.0 if claim.least else -there
    if claim in DEFAULT_CLAIMS:
        (made.path / "config.toml").write_text(DEFAULT)
    with made.store() as store:
        store.set_fact("agreement", {claim.number: here})
    found = check(made, claim.contrast)
    assert (found.verdict, found.here) == ("agrees" if agrees else "differs", here)
    assert found.sentence.startswith(f"{found.verdict.capitalize()}: {claim.words} ({claim.study}). ")
    assert f"{claim.measure[1:]}: " in found.sentence
    assert "95% interval" in found.sentence


def with_movement(made, when):
    """A run of 64 steps in which each kind of matrix goes all its way at one step."""
    addresses = [f"L{layer}.{kind}" for kind in when for layer in (0, 1)]
    with made.store() as store:
        store.register_addresses([AddressRow(address=a, site="attn", kind=a[-3:], shape=(4, 4)) for a in addresses])
        for step in (0, 8, 16, 32, 64):
            store.add_values(step, "drift", addresses, [float(step >= when[a[-3:]]) for a in addresses])
    return made


@pytest.mark.parametrize(
    ("when", "verdict", "sign"),
    [
        ({"W_Q": 16, "W_K": 16, "W_V": 64, "W_O": 64}, "agrees", -1),
        ({"W_Q": 64, "W_K": 64, "W_V": 16, "W_O": 16}, "differs", 1),
    ],
)
def test_the_order_in_which_matrices_move(made, when, verdict, sign):
    found = check(with_movement(made, when), "half way QK - VO (trained)")
    late, early = (np.sqrt(a * b) for a, b in ((32, 64), (8, 16)))  # halfway, by the logarithm of the step
    assert found.verdict == verdict and found.here == pytest.approx(sign * (late - early))
    assert f": {found.here:+.0f} here, {found.there:+.0f} steps in the study" in found.sentence


def test_a_run_of_the_default_recipe_is_compared_with_the_study_of_that_recipe(made):
    with_movement(made, {"W_Q": 64, "W_K": 64, "W_V": 16, "W_O": 16})
    (made.path / "config.toml").write_text(DEFAULT)
    with made.telemetry() as telemetry:
        found = checks(Evidence(made.path, telemetry))
    assert {c.claim.study for c in found} == {"default-recipe"}
    (order,) = (c for c in found if c.claim.is_step)
    assert order.verdict == "agrees" and order.here > 0 < order.there


def test_a_run_in_which_v_and_o_did_not_move_has_no_order(made):
    found = check(with_movement(made, {"W_Q": 16, "W_K": 16, "W_V": 99, "W_O": 99}), "half way QK - VO (trained)")
    assert found.verdict == "cannot be compared" and "did not move" in found.sentence


@pytest.mark.parametrize(("moved", "verdict"), [(0.0, "agrees"), (0.4, "differs")])
def test_rows_never_met(made, moved, verdict):
    counts, scale = np.full(made.n, 7), np.ones(made.n)
    counts[-1], scale[-1] = 0, moved
    found = check(made.with_rows(scale, counts), "rows never met (adamw)")
    assert found.verdict == verdict and found.here == pytest.approx(made.drift[-1])


def test_where_every_token_occurs_no_row_was_never_met(made):
    found = check(made.with_rows(1.0, np.full(made.n, 7)), "rows never met (adamw)")
    assert found.verdict == "cannot be compared" and "every token of the vocabulary occurs" in found.sentence


@pytest.mark.parametrize(("falls", "verdict"), [(False, "agrees"), (True, "differs")])
def test_drift_by_frequency(made, falls, verdict):
    order = np.arange(made.n)  # drift grows with the row
    counts = 100 - order if falls else 100 - np.minimum(order, made.n - 1 - order)
    found = check(made.with_rows(1.0, counts), "frequent rows moved more (adamw)")
    assert found.verdict == verdict and (found.here < -0.9) == falls


def dots_by_hand(rows, counts, word):
    """`dot of the word over others` of the study's probe, pair by pair."""
    seen = [i for i in range(len(rows)) if counts[i]]
    dot = {(i, j): float(rows[i] @ rows[j]) for i in seen for j in seen if i != j}
    spread = np.sqrt(np.mean(np.square(list(dot.values()))))
    mean = {i: np.mean([dot[i, j] for j in seen if j != i]) for i in seen}
    return (mean[word] - np.mean([mean[i] for i in seen if i != word])) / spread


@pytest.mark.parametrize(("along", "verdict"), [(-1.0, "agrees"), (4.0, "differs"), (1.9, "differs")])
def test_dot_products_of_the_commonest_word(made, along, verdict):
    word, counts, special = made.tokenizer.readable["the"], np.full(made.n, 3), [*made.tokenizer.special.values()]
    counts[word] = 50
    counts[special] = 90  # commoner, and no word
    made.with_rows(1.0, counts)
    with made.store() as store:
        store.set_fact("special_tokens", made.tokenizer.special)
    rows = np.random.default_rng(1).normal([2, 0, 0, 0], 0.3, size=(made.n, 4)).astype(np.float32)
    rows[word] = [along, 0, 0, 0]
    save_file({"W_E": rows}, made.path / "model.safetensors")
    found = check(made, "the commonest word with all, less others")
    counts[special] = 0
    assert found.here == pytest.approx(dots_by_hand(rows.astype(np.float64), counts, word))
    assert found.verdict == verdict, found.here


@pytest.fixture(scope="module")
def run(small_text, tmp_path_factory):
    sizes = {"d_model": 16, "n_layers": 2, "n_heads": 2, "n_ctx": 16, "batch_size": 4}
    options = dict(tokenizer="char", preset="textbook", steps=30, seed=1, threads=1, precision="fp32", set=sizes)
    return qkv.train(small_text, out=tmp_path_factory.mktemp("runs") / "run", **options)


def test_a_run_says_at_its_end_what_it_agrees_with(run):
    told = next(answer for answer in read(run.path) if answer.key == "agreement")
    with run.recorded() as telemetry:
        found, kept = checks(Evidence(run.path, telemetry)), telemetry.fact("agreement")
    compared = [c for c in found if c.here is not None]
    differs = sum(c.verdict == "differs" for c in compared)
    assert len(compared) >= 6 and set(kept) == {claim.contrast for claim in CLAIMS if claim.passed}
    assert f"{len(compared) - differs} of the {len(compared)} study results" in told.sentence
    assert all(any(line.startswith(c.sentence) for line in told.more) for c in found)
    assert "optimizer (" not in told.more[-1], "the textbook recipe is that of the studies"


def test_passes_are_those_of_the_models_at_both_ends(run):
    before, after = run.model_at(0), run.model_at(30)
    found = passes(before, after, run.task, run.corpus())
    with run.recorded() as telemetry:
        assert telemetry.fact("agreement") == pytest.approx(found, abs=1e-4)
    still = passes(after, after, run.task, run.corpus())
    assert "L0.q: encodings - matrix (adamw)" not in still, "nothing moved, so nothing has a share"
    windows = spread_windows(run.task, run.corpus(), after.config.sizes, causal=True).inputs
    table = after.embedding.W_E.detach().double()
    with torch.no_grad():
        _, record = after.double().forward_recorded(windows)
    shares = []
    for name in ("embed", "L0.resid_post"):
        pairs = zip(record[name].flatten(0, 1), windows.flatten(), strict=True)
        hits = [int(torch.cosine_similarity(vector[None], table).argmax()) == int(token) for vector, token in pairs]
        shares.append(100 * np.mean(hits))
    assert found["nearest 1 - 0 (causal)"] == pytest.approx(shares[1] - shares[0])


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            '[training.optimizer]\nkind = "muon"\nweight_decay = 0.1\n[model.layout]\nstart = "xavier"\n',
            ("Muon, there AdamW", "weight decay (0.1, there 0)", "Glorot's, there N(0, 0.02)"),
        ),
        (
            '[training.optimizer]\nkind = "adamw"\nweight_decay = 0.0\n[model.layout]\nstart = "gpt2"\n',
            ("optimizer, weight decay and initialization are those of the studies",),
        ),
    ],
)
def test_reasons_name_what_differs_and_no_more(made, config, said):
    with made.store() as store:
        store.set_fact("agreement", {"around (trained)": 0.3})
    (made.path / "config.toml").write_text(config)
    with made.telemetry() as telemetry:
        evidence = Evidence(made.path, telemetry)
        assert agreement(evidence) is None, "a run that is not finished is not judged"
        evidence.run.manifest = {"summary": {"steps": 64}}
        told = agreement(evidence)
    assert told is not None and told.sentence.endswith("and differs from 1.")
    assert all(words in told.more[-1] for words in said) and ("there AdamW" in told.more[-1]) == ("muon" in config)
    whole, _, exception = STUDIES["gradient-path"]["condition"].partition(". Known not to hold in ")
    assert all(part[1:] in told.null for part in whole.split("; "))
    known = f". Known not to hold in {exception.partition(' (')[0].rstrip('.')}."
    assert told.null.endswith(known) and ".." not in told.null
