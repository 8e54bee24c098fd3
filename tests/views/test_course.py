"""In a browser, each step of a lesson sets the page's controls, waits for a prediction, and reveals the answer."""

import pytest

from qkv.lessons import LESSONS
from qkv.lessons.course import lesson, write_page

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("course") / "learn.html"
    write_page(path)
    return path


SHOWN = """() => ({ sentence: document.getElementById("sentence").value, token: learn.state.i, head: learn.state.head,
  first: learn.state.at === 0, last: learn.state.at === learn.state.snapshots.length - 1,
  switches: [...document.querySelectorAll(".switch-row label")].filter((l) => l.querySelector("input").checked)
    .map((l) => l.textContent.trim()) })"""


@pytest.mark.parametrize("name", LESSONS)
def test_each_step_drives_the_page_and_reveals_its_answer_after_a_prediction(look, file, name):
    view = look(file)
    view.evaluate(f"location.hash = 'lesson={name}'")
    one = lesson(name)
    panel = view.locator(".course.open")
    panel.wait_for()
    for number, step in enumerate(one.steps, 1):
        assert panel.locator("p.small").inner_text().startswith(f"Step {number} of {len(one.steps)}.")
        shown, wanted = view.evaluate(SHOWN), step.drive
        assert shown.pop(wanted["at"]) is True
        assert {key: shown[key] for key in ("sentence", "token", "head")} == {
            k: wanted[k] for k in ("sentence", "token", "head")
        }
        assert shown["switches"] == list(wanted.get("switches", []))
        assert step.ask in panel.inner_text() and step.do in panel.inner_text()
        assert step.answer not in panel.inner_text() and panel.locator(".next").is_disabled()
        panel.get_by_role("button", name=step.choices[-1], exact=True).click()
        assert step.answer in panel.inner_text()
        assert view.evaluate(SHOWN)[wanted.get("then", wanted["at"])] is True
        panel.locator(".next").click()
    view.locator(".course:not(.open)").wait_for()
    assert view.locator(".course li").count() == len(LESSONS)
    assert view.complaints == []


def test_the_numbers_of_a_lesson_are_those_of_the_page(look, file):
    view = look(file)
    view.evaluate("location.hash = 'lesson=scores'")
    view.locator(".course.open .choice").first.click()
    step = lesson("scores").steps[0]
    live = view.evaluate("learn.model.layers[0].pattern[learn.state.head * 64 + 5 * 8 + 1]")
    assert f"with {100 * live:.0f}% of its attention" in step.answer


def test_a_lesson_shows_the_model_that_its_answers_are_of(look, file):
    view = look(file)
    view.get_by_role("button", name="Train 300 steps").click()
    while not view.evaluate("learn.state.live"):
        view.wait_for_timeout(50)
    view.evaluate("location.hash = 'lesson=scores'")  # while it trains
    view.locator(".course.open .choice").first.click()
    view.get_by_role("button", name="Train 300 steps").wait_for()
    live = view.evaluate("[learn.state.live, learn.state.snapshots.at(-1).step]")
    assert live == [False, 1000] and "of 1,000" in view.locator(".step-now").inner_text()
    assert view.complaints == []


@pytest.mark.parametrize("width", [380, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_open_lesson_fits_and_has_no_serious_fault(look, file, faults, shot, width, scheme):
    view = look(file, width=width, scheme=scheme)
    view.evaluate("location.hash = 'lesson=trained'")
    view.locator(".course.open .choice").first.click()
    assert view.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert view.evaluate("document.activeElement.className") == "revealed"
    assert faults(view) == []
    shot(view, f"course-{width}-{scheme}")
