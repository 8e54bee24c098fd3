"""Threads wait asleep where cores are shared and awake where they are not, and no number depends on it."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import qkv
from qkv import native
from qkv.training import waiting
from qkv.training.waiting import _Delays, _Policy, _Sleepers, _Watch, watching_cores

counts = pytest.mark.skipif(
    native.openmp() is None or not _Delays().known,
    reason="another OpenMP than GNU's, or a system that counts no delays",
)


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([0.0, 0.05, 0.2], [False, False, False]),
        ([0.0, 0.3, 0.3, 0.2], [False, True, True, True]),
        ([1.0, *7 * [0.0]], [True, True, True, True, False, False, False, False]),  # awake again after two seconds
        ([1.0, *7 * [0.12]], 8 * [True]),  # between the two limits nothing changes
    ],
)
def test_threads_sleep_while_cores_are_shared(shares, expected):
    policy = _Policy()
    assert [policy.after(share, 0.5 * i) for i, share in enumerate(shares)] == expected


def test_waiting_awake_is_tried_more_and_more_seldom_where_it_is_given_up_each_time():
    """Cores that are only missed by threads that wait awake: 0 asleep, 1 awake."""
    policy, awake, now = _Policy(), 0, 0.0
    while now < 600:
        share = 0.0 if policy.asleep else 1.0
        awake += not policy.after(share, now)
        now += 0.5
    assert 5 < awake < 25  # of 1,200
    quiet = [policy.after(0.0, now + 0.5 * i) for i in range(240)]
    assert not any(quiet[122:])  # and in the end it waits awake again where nobody comes


@counts
def test_a_thread_that_shares_its_core_is_slowed_down_by_as_much():
    program = (
        "import os, subprocess, sys, time; from qkv.training.waiting import slowdown\n"
        "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
        "others = [subprocess.Popen([sys.executable, '-c', 'while True: pass']) for _ in range(2)]\n"
        "before = slowdown()\n"
        "end = time.thread_time() + 1.5\n"
        "while time.thread_time() < end: pass\n"
        "[other.kill() for other in others]; print(before, slowdown())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    before, after = map(float, done.stdout.split())
    assert before >= 1 and after > 1.5, done.stderr  # 3 times as long as alone, from then on


def test_nobody_is_slowed_down_where_the_system_counts_nothing(monkeypatch):
    monkeypatch.setattr(waiting.Path, "read_text", lambda path: (_ for _ in ()).throw(FileNotFoundError(path)))
    assert waiting.slowdown() == 1


@counts
def test_delays_are_of_all_threads_and_of_the_time_in_between(monkeypatch):
    times = iter([10.0, 12.0, 12.5])
    reads = iter([{"1": 10**9, "2": 0}, {"1": 2 * 10**9, "2": 10**9, "3": 5}, {"2": 10**9 + 10**8, "3": 5}])
    monkeypatch.setattr(_Delays, "_read", staticmethod(lambda: next(reads)))
    monkeypatch.setattr(waiting.time, "monotonic", lambda: next(times))
    delays = _Delays()
    assert delays.known and delays.share() == 1.0  # two seconds of two; a new thread counts from the next time on
    assert delays.share() == pytest.approx(0.2)


@counts
def test_the_system_counts_how_long_threads_are_kept_from_a_core():
    """Four threads that share one core wait three quarters of the time."""
    program = (
        "import os, threading, time; from qkv.training.waiting import _Delays\n"
        "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
        "import torch; x = torch.ones(300, 300); torch.set_num_threads(1); end = time.monotonic() + 1.5\n"
        "def work():\n"
        "    while time.monotonic() < end: x @ x\n"
        "threads = [threading.Thread(target=work) for _ in range(4)]\n"
        "[thread.start() for thread in threads]; time.sleep(0.2); delays = _Delays(); time.sleep(0.8)\n"
        "print(delays.share())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert float(done.stdout) > 1.5, done.stderr  # 3 where nobody else is on the core


@counts
def test_sleepers_are_threads_that_let_the_others_sleep():
    """The processor time of a thread that waits for work, asleep and awake: other programs do not change it."""
    program = (
        "import contextlib, os, time, torch; from qkv import native; from qkv.training.waiting import _Sleepers\n"
        "torch.set_num_threads(2); x = torch.ones(200_000); x * 2\n"
        "def spent():\n"
        "    found = {}\n"
        "    for t in os.listdir('/proc/self/task'):\n"
        "        with contextlib.suppress(OSError):  # a thread that ends meanwhile\n"
        "            found[t] = int(open(f'/proc/self/task/{t}/schedstat').read().split()[0])\n"
        "    found.pop(str(os.getpid()))\n"
        "    return found\n"
        "def waited():\n"
        "    found = []\n"
        "    for _ in range(5):\n"
        "        x * 2; before = spent(); time.sleep(0.3); after = spent()\n"
        "        found.append(sum(after[t] - before[t] for t in before if t in after) / 1e6)\n"
        "    return sorted(found)[2]\n"
        "sleepers = _Sleepers(native.openmp(), 8 + len(os.sched_getaffinity(0)))\n"
        "awake = waited(); sleepers.come(); assert sleepers.there; time.sleep(0.1)\n"
        "asleep = waited(); n = len(spent())\n"
        "sleepers.leave(); assert not sleepers.there; again = waited(); print(awake, asleep, again, n - len(spent()))"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    awake, asleep, again, gone = map(float, done.stdout.split())
    assert asleep < 0.5 * min(awake, again), (awake, asleep, again)
    assert gone >= 8


@counts
def test_nothing_is_done_where_it_would_change_nothing_or_somebody_has_chosen(monkeypatch):
    cores = len(os.sched_getaffinity(0))
    assert _Watch.of(max(2, cores)) is not None
    assert _Watch.of(1) is None
    monkeypatch.setattr(waiting, "MOST_SLEEPERS", 1)
    assert _Watch.of(2) is None
    monkeypatch.undo()
    for policy in ("passive", "active"):
        monkeypatch.setenv("OMP_WAIT_POLICY", policy)
        assert _Watch.of(2) is None
    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setattr(native, "openmp", lambda: None)
    assert _Watch.of(2) is None
    with watching_cores(2):
        assert "cores" not in {thread.name for thread in threading.enumerate()}


def always(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with that part of a second kept from threads, which is looked at often."""
    monkeypatch.setattr(_Delays, "share", lambda self: share)
    monkeypatch.setattr(waiting, "FIRST", 0.001)


def until(true) -> bool:
    end = time.monotonic() + 60
    while not true() and time.monotonic() < end:
        time.sleep(0.001)
    return true()


@counts
def test_sleepers_come_while_cores_are_shared_and_are_gone_behind(monkeypatch):
    def sleepers() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "sleepers"]

    always(1.0, monkeypatch)
    monkeypatch.setattr(waiting, "SOONEST", 0.0)
    with watching_cores(2):
        assert until(sleepers)
        always(0.0, monkeypatch)
        assert until(lambda: not sleepers())
        always(1.0, monkeypatch)
        assert until(sleepers)
    assert not sleepers() and "cores" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(ValueError, match="as it was"), watching_cores(2):
        raise ValueError("as it was")
    assert not sleepers()


@counts
def test_a_training_has_the_same_bits_however_its_threads_wait(small_text: Path, tmp_path, monkeypatch):
    small = {"n_layers": 2, "d_model": 32, "n_heads": 2, "n_ctx": 16, "batch_size": 8}
    came, come = [], _Sleepers.come
    monkeypatch.setattr(_Sleepers, "come", lambda self: came.append(self) or come(self))
    weights = []
    for share in (0.0, 1.0):
        always(share, monkeypatch)
        given = {"tokenizer": "char", "steps": 20, "set": small, "report": False, "watch": "off", "seed": 3}
        run = qkv.train(small_text, out=tmp_path / str(share), threads=2, precision="fp32", **given)
        weights.append(run.folder.model.read_bytes())
        assert bool(came) == bool(share)
    assert weights[0] == weights[1]
