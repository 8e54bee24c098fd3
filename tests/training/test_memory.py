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


THREADS = """
import sys, threading
from qkv.training.memory import keep_freed_memory, share_freed_memory
assert keep_freed_memory()
if sys.argv[1] == "shared":
    assert share_freed_memory()
ready, done = threading.Barrier(12), threading.Event()
turn = threading.Lock()
def work():
    ready.wait()
    with turn:
        bytes(bytearray(b"x") * (10 << 20))
    done.wait()
threads = [threading.Thread(target=work) for _ in range(12)]
for thread in threads:
    thread.start()
with turn:
    pass
for thread in threads:
    thread.join(0.2)
print(int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6)
done.set()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is glibc's")
def test_threads_that_take_turns_use_the_same_memory_once_it_is_shared():
    def resident(how):
        return float(
            subprocess.run([sys.executable, "-c", THREADS, how], capture_output=True, text=True, check=True).stdout
        )

    assert resident("shared") < resident("each its own") - 30
