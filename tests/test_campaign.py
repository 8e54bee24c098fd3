"""A few faults of each kind of work; the long form is `make campaign`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

CAMPAIGN = Path(__file__).parent.parent / "benchmarks" / "campaign.py"


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
