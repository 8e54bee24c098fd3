"""The page of a study says what its verdict says, and runs nothing."""

import re

from qkv.views.study_page import answer_text, study_page


def verdict(**more):
    contrast = {
        "name": "frozen - trained", "what": "cost", "unit": "nats per token", "margin": 0.03, "expected": "above 0",
        "verdict": "differs", "effect": 0.12, "low": 0.08, "high": 0.16, "sd": 0.02, "n": 4, "p": 0.001,
        "p_holm": 0.002, "p_signs": None, "p_equivalent": 0.9, "detectable": 0.05, "needed": 5, "values": [0.1, 0.14],
    }  # fmt: skip
    arm = {
        "name": "frozen", "what": "W_E <frozen>", "task": "causal", "text": "text", "changes": [],
        "frozen": ["W_E"],
        "optimizer": "adamw", "loss": 2.5, "sd": 0.02, "losses": [2.5, 2.52], "rates": [0.01, 0.03], "at_edge": 0,
        "diverged": 1, "trainings": 9, "curve": [[10, 3.0], [20, 2.5]],
    }  # fmt: skip
    return {
        "study": "frozen-embeddings", "asks": "Must they?", "sentence": "It costs <something>.",
        "contrasts": [contrast, contrast | {"name": "other", "low": None, "high": None, "effect": None}],
        "arms": [arm, arm | {"name": "untrained", "rates": [], "curve": []}], "not_reached": ["x: 1 of 4 replicates"],
        "falsified_by": "If not.", "literature": "Little.", "earlier_designs": [4], "trainings": 9,
        "source": {"name": "s", "sha256": "0" * 64}, "software": "torch x", "design": "d" * 64,
    } | more  # fmt: skip


ROWS = [
    {"arm": "frozen", "role": "tune", "replicate": 1, "lr": 0.01, "diverged": False, "loss": 2.6},
    {"arm": "frozen", "role": "tune", "replicate": 1, "lr": 0.1, "diverged": True, "loss": 4.2},
    {"key": "design"},
]


def test_the_page_holds_sentence_effects_curves_and_every_training():
    page = study_page(verdict(), ROWS)
    assert "It costs &lt;something&gt;." in page and "W_E &lt;frozen&gt;" in page
    assert page.count("<polyline") == 1 and "0.080 to 0.160" in page
    assert "2 in all" in page and "Designs with 4 replicates" in page and "diverged" in page
    assert "Not reached in the time: x: 1 of 4 replicates" in page


def test_the_page_runs_no_script_and_asks_for_nothing():
    page = study_page(verdict(), ROWS)
    assert "<script" not in page and "default-src 'none'" in page
    assert not re.findall(r"(?:src|href)=", page)


def test_the_interval_is_drawn_in_proportion():
    page = study_page(verdict(contrasts=[verdict()["contrasts"][0]]), ())
    zero = float(re.search(r'<line x1="([\d.]+)" x2="[\d.]+" y1="0"', page)[1])
    low, high = map(float, re.search(r'<line x1="([\d.]+)" x2="([\d.]+)" y1="14"', page).groups())
    assert abs((low - zero) / (high - zero) - 0.08 / 0.16) < 0.01


def test_the_answer_is_the_same_in_markdown():
    text = answer_text(verdict())
    assert text.startswith("**It costs <something>.**")
    assert "| cost: frozen - trained (nats per token) | 0.120 | 0.080 to 0.160 | differs |" in text
    assert "9 trainings; intervals: Student's t" in text


def test_a_page_says_which_budget_was_had_and_what_was_not_reached():
    found = verdict() | {"budget_minutes": 12.0, "planned_trainings": 60, "intervals": "exact, by sign flips"}
    found |= {"not_reached": ["frozen: 2 of 4 replicates", "other: 4 of 4 replicates"]}
    for page in (answer_text(found), study_page(found)):
        assert "9 trainings (about 60 planned; budget 12 minutes); intervals: exact, by sign flips" in page
        assert "frozen: 2 of 4 replicates" in page and "other: 4 of 4 replicates" in page
