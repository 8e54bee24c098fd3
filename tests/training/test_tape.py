"""Work that is recorded and done again: on other numbers in the same places, with the same bits as work done anew."""

import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import qkv
from qkv import native
from qkv.kernels.dispatch import call
from qkv.training.graph_replay import tape as tape_module
from qkv.training.graph_replay.tape import NoTape, StaleTape, Tape

MOST = 64 << 20


def work(x: torch.Tensor, W: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Views, copies, sums in place, operators with and without a place for what they make, and a way back."""
    table = W.detach().requires_grad_()
    h = F.layer_norm(F.embedding(ids, table) + x, x.shape[-1:])
    scores = (h @ h.transpose(0, 1)).softmax(-1)
    z = torch.cat((scores @ h, h.flip(1)), dim=1).view(len(ids), 2, -1).sum(1).to(torch.bfloat16).float()
    z.mul_(2).add_(torch.zeros_like(z) + 1)
    loss = F.gelu(z).square().mean() / torch.ones(()).add_(1)
    loss.backward()
    assert table.grad is not None
    return loss.detach(), table.grad, z.detach()


def drawn(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x, W = (torch.randn(n, 24, generator=draw) for n in (16, 11))
    return x, W, torch.randint(11, (16,), generator=draw)


def test_a_replay_makes_the_bits_of_the_work_on_whatever_lies_in_its_places():
    given, found = drawn(0), {}

    def recorded() -> None:
        found["made"] = work(*given)

    tape = Tape.record(recorded, MOST)
    assert all(torch.equal(a, b) for a, b in zip(found["made"], work(*drawn(0)), strict=True))
    for seed in (1, 2, 1):
        for place, other in zip(given, drawn(seed), strict=True):
            place.copy_(other)
        tape.replay()
        assert all(torch.equal(a, b) for a, b in zip(found["made"], work(*drawn(seed)), strict=True))


def test_memory_that_nothing_lies_in_is_used_again():
    x = torch.ones(1 << 18)  # a megabyte
    kept = []

    def recorded() -> None:
        y = x
        for _ in range(64):
            y = y * 1.5 - 0.25
        kept.append(y)

    tape = Tape.record(recorded, MOST)
    assert tape._memory.n_bytes <= 8 << 20  # where 128 were made
    wanted = kept[0].clone()
    kept[0].zero_()
    tape.replay()
    assert torch.equal(kept[0], wanted)


def test_what_is_in_use_when_a_recording_ends_keeps_its_place():
    x, kept = torch.ones(5000), []
    tape = Tape.record(lambda: kept.extend(x + i for i in range(4)), MOST)
    assert len({y.data_ptr() for y in kept}) == 4
    x.fill_(3)
    tape.replay()
    assert [float(y[0]) for y in kept] == [3, 4, 5, 6]


def test_a_number_that_was_read_is_read_again():
    x = torch.tensor([2.0])
    y = torch.zeros(1)
    tape = Tape.record(lambda: y.add_(x, alpha=float(x)), MOST)
    tape.replay()
    assert float(y) == 8
    x.fill_(3)
    with pytest.raises(StaleTape, match=r"3\.0 for 2\.0"):
        tape.replay()
    assert float(y) == 8  # nothing that depends on it was done


@pytest.mark.parametrize(
    "refused",
    [lambda x: torch.rand_like(x), lambda x: x.nonzero(), lambda x: F.dropout(x, 0.5), lambda x: x.to_sparse()],
)
def test_what_cannot_be_repeated_is_not_recorded(refused):
    with pytest.raises(NoTape, match="cannot be repeated|sparse"):
        Tape.record(lambda: refused(torch.ones(4)), MOST)


def test_more_memory_than_is_allowed_is_not_taken():
    with pytest.raises(NoTape, match="more than 4 MiB"):
        Tape.record(lambda: torch.ones(1 << 21).add(1), 4 << 20)


def test_compiled_calls_are_made_again_and_their_faults_are_told():
    seen, faults = [], [0]

    def counting(n, address):
        seen.append((n, address))
        return faults[0]

    x = torch.ones(3)
    tape = Tape.record(lambda: call(counting, 7, x), MOST)
    tape.replay()
    assert seen == [(7, x.data_ptr())] * 2
    faults[0] = 2
    with pytest.raises(IndexError, match="2 targets"):
        tape.replay()


def test_nobody_is_heard_after_a_recording():
    calls = []
    tape = Tape.record(lambda: None, MOST)
    call(calls.append, 1)
    torch.ones(3).mul_(2)
    assert calls == [1] and not tape._calls


def named(call) -> str:
    """The operator or function of a recorded call."""
    function, given = call
    if function is tape_module._faultless:
        function = given[0]
    return str(getattr(function, "func", function))


def test_a_recording_holds_the_work_and_no_call_of_its_own():
    """Compiled calls of tensors: inside the tape's memory, over part of it, outside it, and none."""
    given, made, seen = torch.arange(6.0).view(2, 3), {}, []

    def compiled(*told):
        seen.append(told)

    def recorded() -> None:
        x = given * 2
        call(compiled, x, x[1:], given, given[:, 1:], 7, None, torch.empty(0))
        made["y"] = x.t() + 1

    tape = Tape.record(recorded, MOST)
    assert list(map(named, tape._calls)) == ["aten.mul.out", str(compiled), "aten.add.out"]
    given.add_(1)
    tape.replay()
    assert torch.equal(made["y"], (given * 2).t() + 1)
    assert (
        seen[0] == seen[1]
        and seen[0][1] == seen[0][0] + 12
        and seen[0][2:6]
        == (
            given.data_ptr(),
            given.data_ptr() + 4,
            7,
            None,
        )
    )


@pytest.mark.skipif(native.load("passes") is None, reason=native.why_not("passes"))
def test_the_recording_of_a_training_step_holds_no_call_of_its_own(small_text, tmp_path, monkeypatch):
    tapes, record = [], Tape.record.__func__
    monkeypatch.setattr(Tape, "record", classmethod(lambda cls, *given: tapes.append(record(cls, *given)) or tapes[-1]))
    small = {"n_layers": 2, "d_model": 32, "n_heads": 2, "n_ctx": 16, "batch_size": 4}
    qkv.train(small_text, out=tmp_path / "run", tokenizer="char", steps=4, set=small, report=False, watch="off")
    assert tapes and all(len(tape._calls) > 20 for tape in tapes)
    assert not [name for tape in tapes for name in map(named, tape._calls) if "set_" in name or "detach" in name]


def test_memory_that_compiled_calls_read_is_kept_as_long_as_the_recording():
    held = [np.arange(4.0, dtype=np.float32)]
    there = weakref.ref(held[0])
    tape = Tape.record(lambda: call(lambda address: None, torch.from_numpy(held[0])), MOST)
    held.clear()
    assert there() is not None
    del tape
    assert there() is None


def test_memory_of_the_tape_comes_back_though_compiled_calls_were_told_of_it():
    x = torch.ones(1 << 18)  # a megabyte

    def recorded() -> None:
        for _ in range(64):
            call(lambda address: None, x * 2)

    assert Tape.record(recorded, MOST)._memory.n_bytes <= 8 << 20  # where 64 were made
