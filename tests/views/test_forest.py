"""Pictures of effects: every dot and line stands where its number says, whatever the names are."""

import re
from xml.etree import ElementTree

import pytest
from answer_text import answer_svg, forest_svg

from qkv.studies.verdict.sentences import two_digits

SVG = "{http://www.w3.org/2000/svg}"


def effect(name, unit, values, low, high, margin=0.03):
    return {
        "name": name, "what": f"what {name} is", "unit": unit, "values": values, "low": low, "high": high,
        "effect": sum(values) / len(values), "margin": margin, "verdict": "differs", "nominal": None,
    }  # fmt: skip


@pytest.fixture
def picture():
    rows = [
        effect("first", "nats", [0.1, 0.2, 0.3], 0.05, 0.35),
        effect("in another unit", "points", [-4.0, -6.0], -9.0, -1.0, margin=0.5),
        effect("second & <b>", "nats", [-1.0, -1.2], -1.5, -0.7, margin=0.2),
    ]
    unknown = rows[0] | {"low": None, "high": None, "effect": None, "name": "never reached"}
    return ElementTree.fromstring(forest_svg({"study": "x", "contrasts": [*rows, unknown]})), rows


def axes(svg):
    """Of each axis from top to bottom: a function from a place to its number."""
    ticks = [
        (float(t.get("x")), float(t.get("y")), float(t.text))
        for t in svg.iter(f"{SVG}text")
        if t.get("class") == "tick"
    ]
    for y in sorted({y for _, y, _ in ticks}):
        (x0, _, v0), *_, (x1, _, v1) = [tick for tick in ticks if tick[1] == y]
        yield lambda x, x0=x0, v0=v0, x1=x1, v1=v1: v0 + (float(x) - x0) * (v1 - v0) / (x1 - x0)


def test_every_mark_stands_at_its_number(picture):
    svg, rows = picture
    groups = list(svg.iter(f"{SVG}g"))
    assert len(groups) == 3
    nats, points = axes(svg)
    for group, row, value in zip(groups, [rows[0], rows[2], rows[1]], [nats, nats, points], strict=True):
        line, tolerance = group.find(f"{SVG}line"), (value(1) - value(0)) / 5
        ones = [value(c.get("cx")) for c in group.iter(f"{SVG}circle") if c.get("class") == "one"]
        assert ones == pytest.approx(row["values"], abs=tolerance)
        (mean,) = (value(c.get("cx")) for c in group.iter(f"{SVG}circle") if c.get("class") != "one")
        assert mean == pytest.approx(row["effect"], abs=tolerance)
        assert (value(line.get("x1")), value(line.get("x2"))) == pytest.approx((row["low"], row["high"]), abs=tolerance)
        said = f"{two_digits(row['effect'], '')} differs"
        assert said in "".join(group.itertext()) and row["what"] in "".join(group.itertext())


def test_every_band_is_the_margin_of_its_effect_and_the_first_effect_stands_out(picture):
    svg, rows = picture
    bands = [r for r in svg.iter(f"{SVG}rect") if r.get("class") == "band"]
    nats, points = axes(svg)
    for band, value, margin in zip(bands, (nats, nats, points), (0.03, 0.2, 0.5), strict=True):
        left, wide = float(band.get("x")), float(band.get("width"))
        assert (value(left), value(left + wide)) == pytest.approx((-margin, margin), rel=0.05)
    assert [line.get("class") for g in svg.iter(f"{SVG}g") for line in g.iter(f"{SVG}line")] == [
        "main",
        "other",
        "other",
    ]


def test_effects_of_very_different_size_have_an_axis_each():
    small = [effect(f"small {n}", "nats", [0.1 * n, 0.12 * n], 0.09 * n, 0.13 * n) for n in (1, 2)]
    other = effect("other", "points", [40.0, 60.0], 30.0, 70.0, margin=0.5)
    large = effect("large", "nats", [3.0, 3.2], 2.9, 3.3)
    svg = ElementTree.fromstring(forest_svg({"study": "x", "contrasts": [small[0], large, other, small[1]]}))
    heads = ["".join(t.itertext()) for t in svg.iter(f"{SVG}text") if t.get("class") == "head"]
    assert [head.split(" (")[0] for head in heads] == ["nats", "nats", "points"]
    shown = zip(svg.iter(f"{SVG}g"), [*small, large, other], strict=True)
    assert all(row["what"] in "".join(group.itertext()) for group, row in shown)
    wide = [float(line.get("x2")) - float(line.get("x1")) for g in svg.iter(f"{SVG}g") for line in g.iter(f"{SVG}line")]
    assert min(wide) > 20


def test_nothing_to_draw_is_no_picture():
    row = effect("x", "nats", [0.1], None, None)
    assert forest_svg({"study": "x", "contrasts": [row]}) == ""


def test_everything_lies_inside_and_asks_nobody(picture):
    svg, _ = picture
    width = float(svg.get("width"))
    assert all(0 <= float(e.get(k)) <= width for e in svg.iter() for k in ("x", "x1", "x2", "cx") if e.get(k))
    assert not re.search(r"href|url\(|<script", ElementTree.tostring(svg, encoding="unicode"))


@pytest.mark.parametrize(("low", "high"), [(0.05, 0.35), (-0.0766, 0.8297), (-0.3429, 1.069), (-0.6, 0.4)])
def test_an_axis_goes_no_further_than_its_numbers_and_the_margin(low, high):
    svg = ElementTree.fromstring(forest_svg({"study": "x", "contrasts": [effect("x", "nats", [low, high], low, high)]}))
    _, (left, right) = ((float(line.get("x1")), float(line.get("x2"))) for line in svg.iter(f"{SVG}line"))
    (band,) = (float(r.get("x")) for r in svg.iter(f"{SVG}rect") if r.get("class") == "band")
    ticks = [float(t.get("x")) for t in svg.iter(f"{SVG}text") if t.get("class") == "tick"]
    assert min(band, left) == pytest.approx(12, abs=0.2)
    assert len(ticks) > 1 and min(band, left) - 0.2 < min(ticks) and max(ticks) < right + 0.2


def test_replicates_of_a_rate_stand_at_what_they_are_less_the_promised_one():
    rate = effect("rate", "of all", [0.0, 0.25, 0.0, 0.25], -0.02, 0.18) | {"nominal": 0.05, "effect": 0.075}
    svg = ElementTree.fromstring(forest_svg({"study": "x", "contrasts": [rate]}))
    (value,) = axes(svg)
    circles = [c for g in svg.iter(f"{SVG}g") for c in g.iter(f"{SVG}circle")]
    ones = [value(c.get("cx")) for c in circles if c.get("class") == "one"]
    assert ones == pytest.approx([-0.05, 0.2], abs=0.005)  # replicates at one place are one dot
    assert value(circles[-1].get("cx")) == pytest.approx(0.075, abs=0.005)


def test_what_an_effect_comes_to_is_never_cut_nor_rounded_to_nothing():
    row = effect("x", "nats", [4e-5, 6e-5], -1e-4, 2e-4) | {"verdict": "differs but trivially (not after correction)"}
    other = row | {"name": "first", "low": None, "high": None, "effect": None}
    svg = ElementTree.fromstring(forest_svg({"study": "x", "contrasts": [other, row]}))
    (group,) = svg.iter(f"{SVG}g")
    *_, said = group.iter(f"{SVG}text")
    told = "".join(said.itertext())
    assert told == "+0.000050 differs but trivially (not after correction)"
    assert said.get("text-anchor") == "end" and float(said.get("x")) <= float(svg.get("width"))
    assert group.find(f"{SVG}line").get("class") == "other"  # the question's own effect is not among these


def test_an_answer_about_losses_shows_them_with_what_counting_reaches():
    cost = effect("cost", "nats per token", [0.2, 0.3], 0.15, 0.35) | {
        "terms": [[1.0, "frozen", "loss"], [-1.0, "trained", "loss"]]
    }
    other = effect("other", "nats per token", [1.0, 1.1], 0.9, 1.2) | {"terms": []}
    arms = [
        {
            "name": name,
            "what": f"<{name}>",
            "task": "causal",
            "text": "text",
            "loss": loss,
            "losses": [loss, loss + 0.1],
        }
        for name, loss in (("trained", 2.0), ("frozen", 2.25), ("unread", 9.0))
    ]
    file = {"study": "x", "contrasts": [cost, other], "answers": ["cost"], "arms": arms}
    svg = ElementTree.fromstring(answer_svg(file | {"baseline": {"ngram": 1.5, "trained": 2.0, "arm": "trained"}}))
    groups = list(svg.iter(f"{SVG}g"))
    losses, effects = axes(svg)
    assert ["".join(group.itertext()).partition(":")[0] for group in groups] == [
        "<trained>",
        "<frozen>",
        "what cost is",
    ]
    for group, arm in zip(groups[:2], arms[:2], strict=True):
        mean = losses([c for c in group.iter(f"{SVG}circle") if c.get("class") != "one"][0].get("cx"))
        assert mean == pytest.approx(arm["loss"], abs=0.01) and f"{arm['loss']:.2f}" in "".join(group.itertext())
    counting, zero = [line.get("x1") for line in svg.iter(f"{SVG}line") if line.get("class") == "zero"]
    assert losses(counting) == pytest.approx(1.5, abs=0.01) and effects(zero) == pytest.approx(0.0, abs=0.005)
    alone = ElementTree.fromstring(
        answer_svg(file | {"answers": ["other"], "baseline": {"ngram": 1.5, "trained": 2.0}})
    )
    assert len(list(alone.iter(f"{SVG}g"))) == 1, "an effect of no loss has no losses beside it"
