"""The page of a study says what its verdict says, and asks for nothing."""

import re

from answer_text import answer_text, folded_text, forest_svg

from qkv.studies.verdict.statistics import how_exact
from qkv.views.study.page import study_page
from qkv.views.study.section import effort, study_section

ROWS = [
    {"arm": "frozen", "role": "tune", "replicate": 1, "lr": 0.01, "diverged": False, "loss": 2.6},
    {"arm": "frozen", "role": "tune", "replicate": 1, "lr": 0.1, "diverged": True, "loss": 4.2},
    {"key": "design"},
]


def test_the_page_is_complete_and_asks_for_nothing(verdict):
    page = study_page(verdict(sentence="</script><img src=x>"), ROWS)
    assert "default-src 'none'" in page and "<img" not in page
    assert not re.search(r"""(?:src|href)\s*=\s*["']?\s*(?:https?:)?//""", page)
    assert "<noscript><h1>frozen-embeddings" in page and "&lt;img src=x&gt;" in page


def test_the_answer_is_the_same_in_markdown(verdict):
    file = verdict(brief="Measured with 2 layers.", more="Nor does it.", math=["`a = b`"], answers=["frozen - trained"])
    parts = (
        "**Yes.** Measured with 2 layers.", "](x.svg)", "Nor does it.", "## The math\n\n- `a = b`", "## How sure",
        "From a full run, unfinished.", "| cost | +0.12 nats per token | +0.080 to +0.16 | differs | 4 |", "On s.",
        "No counting baseline applies", "Another run.", "## What would change",
        "wrong (see *expected* in the table of every effect):\n\n- If not.",
    )  # fmt: skip
    text = answer_text(file, "x.svg", ["Another run."])
    assert [text.find(part) for part in parts] == sorted(text.find(part) for part in parts) and parts[0] in text
    loses = verdict(
        plain="These models predict worse than counting (2.00 nats per token against 1.00 for the best n-gram), so this"
        " answer is about models that have not yet learned the text. Yes.",
        baseline={"ngram": 1.0, "trained": 2.0, "better": 0, "of": 1, "tokens": 9, "order": 2},
    )
    assert answer_text(loses).startswith("These models predict worse") and "text.\n\n**Yes.**" in answer_text(loses)


def test_the_rest_is_folded(verdict):
    text = folded_text(verdict())
    assert "| cost (nats per token) | 0.120 | 0.080 to 0.160 | differs |" in text
    assert "- It costs <something>.\n" in text and "- 9 trainings; intervals: Student's t" in text
    assert text.count("<details") == text.count("</details>") == 3


def test_steps_are_whole_in_table_and_picture(verdict):
    found = verdict()
    main = found["contrasts"][0] | {
        "unit": "steps",
        "effect": -185.4,
        "low": -317.04,
        "high": 0.04,
        "detectable": 142.3,
    }
    found["contrasts"] = [main | {"values": [-180.2, -190.6]}]
    assert "(steps) | -185 | -317 to 0.040 | differs |" in folded_text(found) and "| 142 |" in folded_text(found)
    picture = forest_svg(found)
    assert ">-185 differs<" in picture and ": -185, -317 to +0</title>" in picture


def test_a_page_says_which_budget_was_had_and_what_was_not_reached(verdict):
    found = verdict() | {"budget_minutes": 12.0, "planned_trainings": 60, "intervals": "exact, by sign flips"}
    found |= {"not_reached": ["frozen: 2 of 4 replicates", "other: 4 of 4 replicates"]}
    for page in (folded_text(found), study_page(found)):
        assert (
            "9 trainings (about 60 planned; budget of the last call 12 minutes); intervals: exact, by sign flips"
            in page
        )
        assert "frozen: 2 of 4 replicates" in page and "other: 4 of 4 replicates" in page


def test_rows_that_are_empty_for_want_of_time_are_named_in_one_place(verdict):
    found = verdict()
    main, other = found["contrasts"]
    arm = found["arms"][0]
    found["contrasts"] = [main | {"n": 0}, other | {"name": "there", "what": "there"}, other | {"what": "gone", "n": 0}]
    found["arms"] = [arm, arm | {"name": "begun", "losses": []}, arm | {"name": "not begun", "trainings": 0}]
    found["not_reached"] = ["not begun: 4 of 4 replicates"]
    text = folded_text(found)
    assert (
        "- Not reached in time: not begun: 4 of 4 replicates.\n- Not reached in time: no replicate measured gone."
        in text
    )
    assert [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")][2:4] == [
        "| cost (nats per token)", "| there (nats per token)",
    ]  # fmt: skip
    assert "| begun |" in text and "| not begun |" not in text
    assert "| not begun |" in folded_text(found | {"not_reached": []}), "nothing is hidden where all was reached"
    section = study_section(found)
    assert [effect.name for effect in section.effects] == ["frozen - trained", "there"]
    assert [arm.name for arm in section.arms] == ["frozen", "begun"] and "gone" in section.not_reached[-1]


def test_intervals_of_few_replicates_are_said_to_be_of_another_kind():
    verdict = {"trainings": 9, "intervals": how_exact(6), "contrasts": [{"n": 6}, {"n": 1}]}
    assert effort(verdict) == "9 trainings; intervals: of the median, between order statistics"
    verdict["contrasts"].append({"n": 2})
    assert (
        effort(verdict)
        == "9 trainings; intervals: of the median, between order statistics; of fewer than 6 replicates Student's t"
    )


def test_effects_told_side_by_side_stand_in_one_table_with_their_intervals(verdict):
    file = verdict()
    first, other = file["contrasts"]
    told = {
        "columns": ["frozen", "set back"],
        "rows": [["W_Q", [first["name"], other["name"]]], ["W_K", ["missing"] * 2]],
    }
    more = {"columns": ["frozen"], "rows": [["W_Q", [first["name"]]], ["W_V", [first["name"]]]]}
    assert study_section(file).accounts == () and study_section(file | {"accounts": None}).accounts == ()
    assert study_section(file | {"accounts": told}).accounts == (), "one row is no comparison"
    section = study_section(file | {"accounts": more})
    unit, cells = first["unit"], "0.120 (0.080 to 0.160)"
    assert section.accounts == ((unit, "frozen"), ("W_Q", cells), ("W_V", cells))
    assert f"| W_V | {cells} |" in folded_text(file | {"accounts": more})


def test_every_expectation_that_failed_is_named_with_what_was_expected(verdict):
    first = verdict()["contrasts"][0]
    failed = first | {"name": "a", "what": "the cost", "expected": {"near": 0.0, "within": 5.0}, "outcome": "failed"}
    still = first | {"name": "b", "expected": {"less_than": "a"}, "outcome": "open"}
    told = verdict(contrasts=[first, failed, still], refuted_by="More of it.")
    words = "1 failed, 1 met, 1 open. Failed: the cost, +0.12 nats per token (expected within 5 of 0)."
    heading = "Expectations stated before training (3)"
    assert f"{heading}: {words}" in folded_text(told) and study_section(told).told[1] == (heading, words)
    assert "| less than `the cost`: open |" in folded_text(told)
    assert study_section(told).effects[0].expected == "above 0: met"
    assert "## What would change the answer\n\n- More of it.\n" in answer_text(told)
    nothing = verdict(contrasts=[first | {"expected": None, "outcome": None}])
    assert "Expectations" not in folded_text(nothing)
