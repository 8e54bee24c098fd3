"""A few faults of each kind of work; the long form is `make campaign`."""

import re
import shutil
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
        [sys.executable, CAMPAIGN, "--faults", "16", "--seed", "7", "--page", page],
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    text = page.read_text()
    assert "16 faults hit work in progress; 0 were not survived" in text
    counted = re.findall(r"^\| ([a-z]+) \|.* (\d+) \|$", text, flags=re.MULTILINE)
    assert {work for work, _ in counted} == {
        "train", "ranks", "watch", "tokenise", "study", "export", "import", "report",
    }  # fmt: skip
    assert sum(int(n) for _, n in counted) == 16


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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("cc"), reason="records what a process of Linux writes")
def test_power_cuts_at_recorded_writes_lose_nothing() -> None:
    words = [sys.executable, BENCHMARKS / "power_cuts.py", "--works", "train,watch,import", "--most", "12"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    tried = re.search(r"^(\d+) different disks after a power cut; 0 were not survived", done.stdout, flags=re.MULTILINE)
    assert tried is not None and int(tried[1]) >= 12


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="forks")
@pytest.mark.parametrize(
    "words",
    [["damage.py", "--tries", "40", "--seed", "3"], ["strange_folders.py", "--inputs", "60", "--each", "60"]],
    ids=["damaged files", "strange folders"],
)  # fmt: skip
def test_no_command_uses_what_was_damaged_or_breaks_over_what_somebody_made(words: list[str], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    done = subprocess.run(
        [sys.executable, BENCHMARKS / words[0], *words[1:], "--page", page],
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert re.search(r"\b(\d\d) (readings of damaged runs; 0 were silent|inputs)", page.read_text())
