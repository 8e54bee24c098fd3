"""A few faults of each kind of work; the long form is `make campaign`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent / "campaigns"
CAMPAIGN, SOAK = BENCHMARKS / "campaign.py", BENCHMARKS / "soak.py"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="kills processes as POSIX does")
def test_work_that_is_killed_at_observed_moments_ends_with_the_same_bytes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    done = subprocess.run(
        [sys.executable, CAMPAIGN, "--faults", "12", "--seed", "7", "--page", page],
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    text = page.read_text()
    assert "12 faults hit work in progress; 0 were not survived" in text
    counted = re.findall(r"^\| (train|tokenise|study|export) \|.* (\d+) \|$", text, flags=re.MULTILINE)
    assert {work for work, _ in counted} == {"train", "tokenise", "study", "export"}
    assert sum(int(n) for _, n in counted) == 12


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads memory and files of processes from /proc")
def test_half_a_minute_of_soak_asks_the_page_for_everything_and_says_what_stayed(
    small_text: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    done = subprocess.run(
        [sys.executable, SOAK, small_text, "--minutes", "0.5", "--page", page],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    text = page.read_text()
    answers = re.search(r"^(\d+) answers of the page", text, flags=re.MULTILINE)
    assert answers is not None and int(answers[1]) >= 4
    assert re.findall(r"^\| (training|page) \|.*\| (yes|no) \|$", text, flags=re.MULTILINE) == [
        ("training", "yes"), ("page", "yes"),
    ]  # fmt: skip
