"""The section of a study: what its folder tells, with intervals from its own log, and nothing that is not there."""

import json

import numpy as np
import pytest
from scipy import stats

from qkv.errors import RunFolderError, UserError
from qkv.views.host import Host
from qkv.views.live.serving import shown_of
from qkv.views.study.page import write_study_page
from qkv.views.study.section import is_study, read_study, study_section
from qkv.views.study.server import study_pulse

CURVES = [[[10, 3.0], [20, 2.5]], [[10, 3.2], [20, 2.52]], [[10, 3.1], [20, 2.6]]]
BAD = '</script><img src=x onerror="window.hurt=1">'


def report(replicate, curve, **more):
    about = {"key": f"r{replicate}", "arm": "frozen", "role": "report", "replicate": replicate, "lr": 0.01}
    return about | {"diverged": False, "loss": curve[-1][1] if curve else 9.0, "curve": curve} | more


LOG = [
    {"key": "design a", "design": "a" * 64, "replicates": 2},
    {"key": "design d", "design": "d" * 64, "replicates": 4},
    {
        "key": "t",
        "arm": "frozen",
        "role": "tune",
        "replicate": 1,
        "lr": 0.1,
        "diverged": True,
        "loss": 9.0,
        "curve": [],
    },
    *(report(i + 1, curve) for i, curve in enumerate(CURVES)),
]


@pytest.fixture
def folder(tmp_path, verdict):
    place = tmp_path / "study-frozen-embeddings-s-0123abcd"
    place.mkdir()
    (place / "runs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in LOG), encoding="utf-8")
    (place / "verdict.json").write_text(json.dumps(verdict(asks=f"Must they? {BAD}")), encoding="utf-8")
    return place


def test_only_losses_of_one_thing_share_an_axis(verdict):
    def arm(name, text, task):
        return {**verdict()["arms"][0], "name": name, "text": text, "task": task}

    arms = [arm("a", "text", "causal"), arm("b", "recall", "recall"), arm("c", "text", "causal")]
    assert [a.of for a in study_section(verdict(arms=arms)).arms] == ["causal", "recall", "causal"]
    arms = [arm("a", "text", "causal"), arm("b", "words", "causal"), arm("c", "text", "masked")]
    assert [a.of for a in study_section(verdict(arms=arms)).arms] == ["causal, text", "causal, words", "masked"]


def test_curves_have_the_t_interval_of_their_own_replicates(folder):
    arm = read_study(folder, Host()).study.arms[0]
    losses = np.array([[point[1] for point in curve] for curve in CURVES])
    assert arm.steps == (10, 20)
    np.testing.assert_allclose(arm.mean, losses.mean(0))
    for column, low, high in zip(losses.T, arm.lows, arm.highs, strict=True):
        expected = stats.t.interval(0.95, 2, loc=column.mean(), scale=stats.sem(column))
        np.testing.assert_allclose((low, high), expected)
    assert (arm.low, arm.high) == pytest.approx(stats.t.interval(0.95, 1, loc=2.51, scale=stats.sem([2.5, 2.52])))


def test_every_training_and_every_design_counts(folder):
    study = read_study(folder, Host()).study
    assert len(study.runs) == 4 and study.runs[0].diverged and study.runs[0].loss is None
    assert study.designs == (2, 4) and study.design == "d" * 64


def test_a_verdict_without_its_log_has_a_curve_and_no_interval(verdict):
    arm, untrained = study_section(verdict()).arms
    assert arm.mean == (3.0, 2.5) and arm.lows == (None, None)
    assert untrained.steps == () and study_section(verdict(seeds=3)).designs == (4, 3)


def test_before_the_verdict_it_says_how_far_it_is(folder):
    (folder / "verdict.json").unlink()
    design = {"study": "frozen-embeddings", "hash": "d" * 64, "replicates": 4, "arms": [1, 2], "source_name": "s"}
    (folder / "design-dddddddd.json").write_text(json.dumps(design), encoding="utf-8")
    study = read_study(folder, Host()).study
    assert study.missing.startswith("No verdict yet: 4 trainings made so far, of 2 arms in 4 replicates")
    assert study.effects == () and len(study.runs) == 4


def test_a_folder_is_told_apart_from_a_run(folder, run_folder, tmp_path):
    assert is_study(folder) and not is_study(run_folder.folder) and not is_study(tmp_path / "nothing")
    with pytest.raises(UserError, match="leave --beside out"):
        shown_of(folder, run_folder.folder)
    (folder / "verdict.json").write_text("{", encoding="utf-8")
    with pytest.raises(RunFolderError, match="damaged"):
        read_study(folder, Host())


def test_a_pulse_changes_with_the_log_and_with_the_verdict(folder):
    before = study_pulse(folder)
    with open(folder / "runs.jsonl", "a", encoding="utf-8") as log:
        log.write(json.dumps(report(4, CURVES[0])) + "\n")
    after = study_pulse(folder)
    assert after.log_bytes > before.log_bytes and after.verdict == before.verdict > 0


def test_replicates_of_a_rate_are_less_the_promised_one_as_the_effect_is(verdict):
    rate = verdict()["contrasts"][0] | {"sd": None, "effect": 0.02, "values": [0.0, 0.14], "nominal": 0.05}
    assert study_section(verdict(contrasts=[rate])).effects[0].values == pytest.approx([-0.05, 0.09])


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 380])
def test_the_page_is_read_without_fault(look, folder, width, scheme, faults, shot):
    page = look(write_study_page(folder), width=width, scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    assert page.complaints == [] and page.evaluate("window.hurt") is None
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    shot(page, f"study-{width}-{scheme}")
    assert faults(page) == []
    assert BAD in page.locator("h1").inner_text()
    text = page.locator("#study").inner_text()
    assert "It was designed 2 times" in text and "trained 4 times in all" in text and "dddddddddddd" in text
    assert "+0.080 to +0.160" in text and "2.383 to 2.637" in text and "cost" in text
    assert page.locator("#study svg").count() == 3, "the answer, every effect, every arm"


@pytest.mark.browser
def test_the_interval_is_drawn_in_proportion(look, folder):
    page = look(write_study_page(folder))
    lines = (
        page.locator("#study svg")
        .first.locator("line")
        .evaluate_all("(all) => all.map((e) => ['x1', 'x2'].map((name) => Number(e.getAttribute(name))))")
    )
    zero = next(left for left, right in lines if left == right)
    low, high = next(pair for pair in lines if pair[0] != pair[1])
    assert (low - zero) / (high - zero) == pytest.approx(0.08 / 0.16, abs=0.02)


@pytest.mark.browser
def test_every_effect_has_the_band_of_its_own_margin(look, folder):
    kept = json.loads((folder / "verdict.json").read_text())
    first = kept["contrasts"][0] | {"margin": 0.03}
    kept |= {"contrasts": [first, first | {"name": "other", "margin": 0.06}], "answers": [first["name"], "other"]}
    (folder / "verdict.json").write_text(json.dumps(kept))
    page = look(write_study_page(folder))
    bands = page.locator("#study svg").first.locator("rect")
    narrow, wide = bands.evaluate_all("(all) => all.map((e) => Number(e.getAttribute('width')))")
    assert wide == pytest.approx(2 * narrow, rel=0.01)
    assert "margin of 0.03 or 0.06" in page.locator("#study figcaption").first.inner_text()


@pytest.mark.browser
def test_effects_and_curves_are_told_apart_on_a_phone_too(look, folder):
    kept = json.loads((folder / "verdict.json").read_text())
    first, arm = kept["contrasts"][0], kept["arms"][0]
    long = "frequent rows moved more than others (adamw, tied)"
    large = {"name": long, "what": long, "effect": 9.0, "low": 8.0, "high": 10.0, "values": [8.0, 10.0]}
    kept["contrasts"] = [first, first | {"name": "other"}, first | large, first | {"name": "s", "unit": "of its norm"}]
    kept["arms"] = [arm | {"name": f"arm {i}", "curve": [[10, 3.0 + i], [20, 2.0 + i]]} for i in range(15)]
    kept["arms"].append(arm | {"name": "one", "text": "other", "curve": [[10, 3.0]]})
    (folder / "verdict.json").write_text(json.dumps(kept))
    (folder / "runs.jsonl").unlink()
    page = look(write_study_page(folder), width=400)
    names = page.locator("#study .figure-title").all_text_contents()
    each = ["Effects: nats per token", "Larger effects: nats per token", "Effects: of its norm"]
    assert names[:4] == [each[0], *each], "those of the answer, then all of them, folded"
    page.locator("#study details").evaluate_all("(all) => all.forEach((one) => (one.open = true))")
    page.locator("#study svg").nth(5).wait_for()
    assert long.replace(" ", "") in page.locator("#study svg").nth(2).text_content().replace(" ", "")
    outside = "(all) => all.filter((e) => e.getBoundingClientRect().left < 0).map((e) => e.textContent)"
    assert page.locator("#study svg text").evaluate_all(outside) == []
    curves, single = page.locator("#study svg").nth(4), page.locator("#study svg").nth(5)
    style = "(e) => ['stroke', 'stroke-dasharray'].map((name) => e.closest('g').getAttribute(name)).join(' ')"
    drawn = curves.locator("path").evaluate_all(f"(all) => all.map({style})")
    assert len(drawn) >= 15 and len(set(drawn)) == len(drawn)
    assert single.locator("circle").count() >= 1 and page.complaints == []


@pytest.mark.browser
def test_the_live_page_of_a_study_follows_its_log(look, folder, serving):
    from playwright.sync_api import expect

    server = serving(folder)
    page = look(f"http://127.0.0.1:{next(server)}/", offline=False)
    expect(page.locator("#study")).to_contain_text("trained 4 times in all")
    page.locator("#study summary").last.click()
    page.evaluate("() => scrollTo(0, 300)")
    with open(folder / "runs.jsonl", "a", encoding="utf-8") as log:
        log.write(json.dumps(report(4, CURVES[0])) + "\n")
    expect(page.locator("#study")).to_contain_text("trained 5 times in all", timeout=15_000)
    assert page.locator("#study details").last.evaluate("(e) => e.open") and page.evaluate("() => scrollY") == 300
    assert page.evaluate("() => document.activeElement.tagName") == "SUMMARY"
    assert page.complaints == []
    page.close()
    assert list(server) == []
