"""Memory that is freed is kept."""

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, torch
from qkv.training.memory import hand_back_freed_memory, keep_freed_memory
if sys.argv[1] != "as it was":
    assert keep_freed_memory()
if sys.argv[1] == "handed back":
    assert hand_back_freed_memory()
def touch():
    return [torch.ones(1 << 20) for _ in range(16)]
touch(), touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    touch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is glibc's")
def test_allocating_again_what_was_freed_costs_no_page_fault_once_memory_is_kept():
    assert page_faults("kept") < page_faults("as it was") / 10
    assert page_faults("handed back") > 10 * page_faults("kept")
