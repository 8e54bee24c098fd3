"""Which kernels are taken is measured once a machine, agrees with whoever measured first, and is what then runs."""

import time
from pathlib import Path

import pytest
import torch

from qkv import native
from qkv.kernels import attention_products, elementwise
from qkv.kernels.elementwise import ANY_SIZE, Kernels
from qkv.training import calibration
from qkv.training.calibration import Choice

needs_vectors = pytest.mark.skipif(native.load("vectors") is None, reason=native.why_not("vectors"))


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache folder in which nothing is remembered, beside libraries that are loaded."""
    monkeypatch.setattr(native, "folder", lambda: tmp_path)
    monkeypatch.setattr(calibration, "choice", calibration.choice.__wrapped__)
    return tmp_path


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ([0.5, 0.5, 0.5, 0.5], 2**15),
        ([0.5, 0.96, 0.98, 0.99], 2**13),
        ([0.7, 0.8, 1.02, 0.8], 2**15),  # what is lost in between is less than what is won behind it
        ([0.7, 0.8, 1.02, 0.98], 2**13),
        ([0.9, 1.4], 2**12),  # and no more is tried
        ([0.98, 0.99, 1.0, 1.01], 0),
        ([1.7], 0),
    ],
)
def test_ours_are_taken_up_to_where_it_pays_most(monkeypatch, ratios, expected):
    left = list(ratios)
    monkeypatch.setattr(calibration, "_ratio", lambda ours, theirs: left.pop(0))
    assert calibration._largest((2**12, 2**13, 2**14, 2**15), lambda size: (int, int)) == expected
    assert not left


def test_the_time_of_one_by_that_of_the_other_is_of_this_thread_alone():
    def work(seconds: float):
        def make() -> None:
            end = time.thread_time() + seconds
            while time.thread_time() < end:
                pass
            time.sleep(0.01)  # as long on either side, and on no core

        return make

    ratio = calibration._ratio(work(1e-3), work(4e-3))
    assert 0.2 < ratio < 0.35


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ([1.2, 1.1, 0.9], Choice(True, Kernels(product=64))),
        ([1.2, 1.1, 1.01, 0.9], Choice(True, Kernels())),
        ([1.2, 1.1, 1.01, 1.01, 1.2, 1.1], Choice(False, Kernels())),
    ],
)
def test_a_block_is_tried_without_kernels_that_only_alone_are_faster(monkeypatch, ratios, expected):
    left = list(ratios)
    monkeypatch.setattr(calibration, "_limits", lambda dtype: Kernels(product=64))
    monkeypatch.setattr(calibration, "_ratio", lambda ours, theirs: left.pop(0))
    assert calibration._measure(torch.float32) == expected
    assert not left


@pytest.mark.skipif(native.load("passes") is None, reason=native.why_not("passes"))
def test_what_was_measured_first_is_what_every_process_takes(kept, monkeypatch):
    first = Choice(True, Kernels(product=2**14, activated=2**15, gradient=0, keys=ANY_SIZE))
    found = [first, Choice(False, Kernels())]
    monkeypatch.setattr(calibration, "_measure", lambda dtype: found.pop(0))
    assert [calibration.choice(torch.float32) for _ in range(3)] == [first] * 3
    assert calibration.choice(torch.bfloat16) == Choice(False, Kernels())  # of its own
    assert len(list(kept.iterdir())) == 2


@pytest.mark.skipif(native.load("passes") is None, reason=native.why_not("passes"))
def test_what_cannot_be_kept_is_not_measured(kept, monkeypatch):
    monkeypatch.setattr(native, "folder", lambda: kept / "file" / "native")
    (kept / "file").touch()
    monkeypatch.setattr(calibration, "_measure", None)
    assert calibration.choice(torch.float32) == Choice(True, Kernels())


def test_nothing_is_measured_where_nothing_is_compiled(kept, monkeypatch):
    monkeypatch.setattr(native, "load", lambda name: None)
    assert calibration.choice(torch.float32) is None


@needs_vectors
def test_measuring_leaves_threads_and_random_numbers_as_they_were(monkeypatch):
    monkeypatch.setattr(calibration, "SIZES", (2**12, 2**13))
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    torch.manual_seed(3)
    wanted = torch.rand(3)
    torch.manual_seed(3)
    try:
        with torch.no_grad():
            found = calibration._measure(torch.float32)
            assert not torch.is_grad_enabled()
        assert torch.get_num_threads() == threads + 1 and torch.equal(torch.rand(3), wanted)
    finally:
        torch.set_num_threads(threads)
    assert {*vars(found.kernels).values()} <= {0, 2**12, 2**13, ANY_SIZE} and not elementwise.is_compiled()


@needs_vectors
@pytest.mark.parametrize(("ratio", "expected"), [(0.9, True), (1.0, True), (1.01, False)])
def test_passes_that_make_a_block_slower_are_not_taken(monkeypatch, ratio, expected):
    monkeypatch.setattr(calibration, "_ratio", lambda ours, theirs: ratio)
    assert calibration._measure(torch.float32).native is expected


@needs_vectors
def test_each_pair_that_is_timed_is_the_same_work_of_two_makers():
    """Of the two sides of a pair, the first calls products or attention of ours and the other none."""
    from qkv.kernels.dispatch import heard_by

    heard: list[str] = []
    ours = {"multiply", "weight_gradient", "attend", "attend_back"}
    with elementwise.using(True, Kernels(product=ANY_SIZE, activated=ANY_SIZE, gradient=ANY_SIZE), torch.float32):
        by, plain = elementwise.chosen(torch.zeros(1), torch.float32), elementwise.compiled_for(torch.zeros(1))
    draw = torch.Generator().manual_seed(0)
    pairs = [
        calibration._sides(kind, by, plain, 2**12, torch.float32, draw)
        for kind in (calibration._products, calibration._activated, calibration._gradient)
    ]
    pairs.append(calibration._attention(64, torch.float32, draw))
    with heard_by(lambda function, given, found: heard.append(getattr(function, "__name__", ""))):
        for mine, theirs in pairs:
            heard.clear()
            mine()
            assert ours & {*heard}
            heard.clear()
            theirs()
            assert not ours & {*heard}
        on, off = calibration._block(torch.float32, Kernels())
        heard.clear()
        on()
        assert heard
        heard.clear()
        off()
        assert not heard


@needs_vectors
def test_limits_decide_what_is_taken():
    q, k = torch.zeros(1, 2, 5, 8), torch.zeros(1, 2, 5, 8)
    x = torch.zeros(1)
    with elementwise.using(True, Kernels(keys=40), torch.float32):
        assert attention_products.compiled_serves(q, k) and not attention_products.compiled_serves(
            q, torch.zeros(1, 2, 6, 8)
        )
        assert elementwise.chosen(x, torch.float32).limits == Kernels(keys=40)
    with elementwise.using(True):
        assert elementwise.chosen(x, torch.float32).limits == elementwise.UNMEASURED[torch.float32]
    with elementwise.using(True, Kernels(keys=40), torch.bfloat16):
        assert elementwise.chosen(x, torch.float32).limits == elementwise.UNMEASURED[torch.float32]
