"""Progress: a moving line on a terminal, plain lines elsewhere, and nothing drawn more often than it should be."""

import io
from types import SimpleNamespace

import pytest

from qkv.commands.printing import progress
from qkv.commands.printing.progress import Display


def step(n, steps=100, loss=2.0, left=None):
    return SimpleNamespace(step=n, steps=steps, tokens=1000 * n, loss=loss, lr=0.1, seconds_left=left)


@pytest.fixture
def clock(monkeypatch):
    """Time that moves only when it is told to."""
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now.seconds)
    return now


def test_in_a_pipe_a_line_comes_at_the_first_step_every_ten_seconds_and_at_the_last(clock):
    out = io.StringIO()
    with Display(out, live=False) as display:
        for n in range(1, 101):
            clock.seconds += 0.5
            display(step(n))
    lines = out.getvalue().splitlines()
    assert [int(line.split()[1].split("/")[0]) for line in lines] == [1, 21, 41, 61, 81, 100]
    assert lines[1] == "step 21/100  loss 2.000  2000 tokens/s  40 s left"
    assert "\r" not in out.getvalue() and "\x1b" not in out.getvalue()


def test_on_a_terminal_the_line_is_drawn_over_and_taken_away_at_the_end(clock):
    out = io.StringIO()
    with Display(out, live=True) as display:
        display(step(50))
        display(step(51))  # at once: not drawn
        display.say("a sentence")
    written = out.getvalue()
    assert written.count("step 50/100") == 2 and "step 51" not in written
    assert "a sentence\n" in written and written.endswith("\r\x1b[K")


def test_validation_and_events_are_told(clock):
    out = io.StringIO()
    with Display(out, live=False) as display:
        display(SimpleNamespace(step=3, loss=1.5, is_best=True))
        display(SimpleNamespace(step=4, kind="horizon", sentence="the horizon is 900 steps"))
        display("a word")
        display(step(100))
    assert out.getvalue() == "step 4: the horizon is 900 steps\na word\nstep 100/100  loss 2.000  validation 1.500\n"


@pytest.mark.parametrize("live", [False, True])
def test_the_line_of_the_last_step_holds_the_validation_that_comes_after_it(clock, live):
    out = io.StringIO()
    with Display(out, live=live) as display:
        display(step(99))
        display(SimpleNamespace(step=99, loss=1.5, is_best=True))
        clock.seconds += 1.0
        display(step(100))
        clock.seconds += 7.0
        display(SimpleNamespace(step=100, loss=1.25, is_best=True))
        display.say("writing the report")
    told = out.getvalue()
    assert "step 100/100  loss 2.000  validation 1.250  1000 token" in told
    assert told.count("step 100/100") == (3 if live else 1) and told.index("1.250") < told.index("writing")


def test_the_loss_shown_is_the_mean_of_the_steps_so_far_where_these_are_few(clock):
    out = io.StringIO()
    with Display(out, live=False) as display:
        for n, loss in enumerate((9.0, 1.0, 2.0), start=1):
            display(step(n, steps=3, loss=loss))
    assert out.getvalue().splitlines()[-1].startswith("step 3/3  loss 4.000")


def test_without_a_horizon_there_is_no_end_to_tell(clock):
    out = io.StringIO()
    with Display(out, live=False) as display:
        display(step(1, steps=0))
        clock.seconds += 20
        display(step(2, steps=0))
    assert out.getvalue().splitlines()[-1] == "step 2  loss 2.000  50 tokens/s"


def test_no_more_time_is_left_than_the_clock_allows(clock):
    """A first step that took long makes the mean pace a slow one."""
    out = io.StringIO()
    with Display(out, live=False) as display:
        display(step(1, left=60.0))
        clock.seconds += 20
        display(step(11, left=40.0))
        clock.seconds += 10
        display(step(61, left=30.0))
    assert [line.split("  ")[-1] for line in out.getvalue().splitlines()[1:]] == ["40 s left", "20 s left"]


def test_a_reader_that_left_ends_no_training():
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    with Display(Gone(), live=False) as display:
        display(step(1))
        display.say("a sentence")


def test_another_training_begins_with_a_speed_and_losses_of_its_own(clock):
    out = io.StringIO()
    with Display(out, live=False) as display:
        display(step(1))
        clock.seconds += 1.0
        display(step(100, loss=9.0))
        display(SimpleNamespace(step=100, loss=1.5, is_best=True))
        clock.seconds += 10.0
        display(step(1, loss=4.0))
        clock.seconds += 10.0
        display(step(11, loss=4.0))
    assert out.getvalue().splitlines()[2:] == [
        "step 1/100  loss 4.000",
        "step 11/100  loss 4.000  1000 tokens/s  1 min 29 s left",
    ]
