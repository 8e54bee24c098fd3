"""Peak memory of a masked training step over 30,522 words, ours and Hugging Face's BERT: each in a process of its own.

The same architecture, precision and batch (32 windows of 128, 15 % hidden), three updates, so that gradients and
optimizer state are there. Given are the peak of the whole process, and the part of it above what was there before the
model was made (Python, torch and, on their side, transformers), which is the model, its optimizer and the step.
"""

import statistics
import sys
from collections.abc import Callable
from pathlib import Path

from qkv.benchmarks.processes import python
from qkv.benchmarks.session import Session

D_VOCAB, N_CTX, WINDOWS, UPDATES = 30_522, 128, 32, 3
MIB = 2.0**20


def measure(session: Session) -> None:
    """Both sides in turn, in fp32 and, where it is fast here, bf16."""
    from qkv.benchmarks.sides import precisions

    names = {"qkv": "ours"}
    if session.has_transformers():
        names = {"HF BERT": "theirs"} | names
    windows = 4 if session.asked.quick else WINDOWS
    for precision in precisions():
        grown: dict[str, list[float]] = {f"{name}, {precision}": [] for name in names}
        whole: dict[str, list[float]] = {side: [] for side in grown}
        for _ in range(min(3, session.rounds)):
            for name, side in names.items():
                before, peak = _measured(side, precision, windows)
                grown[f"{name}, {precision}"].append((peak - before) / MIB)
                whole[f"{name}, {precision}"].append(peak / MIB)
        peers = {f"qkv, {precision}": f"HF BERT, {precision}"}
        notes = {side: f"{statistics.median(values):.0f} MiB the whole process" for side, values in whole.items()}
        case = f"masked step, 256 x 4, {D_VOCAB:,} words, {windows} windows of {N_CTX}"
        session.record(case, grown, "MiB", peers=peers, lower_is_better=True, notes=notes)


def _measured(side: str, precision: str, windows: int) -> tuple[float, float]:
    """(bytes before the model was made, most bytes) of one process."""
    _, printed = python("-m", "qkv.benchmarks.memory", side, precision, str(windows))
    before, peak = printed.split()[-2:]
    return float(before), float(peak)


# inside the process that is measured


def resident() -> float:
    """Bytes of this process that lie in memory now; where the system does not say, the most that ever did."""
    status = Path("/proc/self/statm")
    if status.is_file():
        import resource

        return int(status.read_text().split()[1]) * float(resource.getpagesize())
    return peak()


def peak() -> float:
    """The most bytes of this process that ever lay in memory."""
    import resource  # not on Windows, where this benchmark cannot run

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(most) * (1 if sys.platform == "darwin" else 1024)


def _ours(precision: str, windows: int) -> Callable[[], float]:
    import torch

    from qkv.benchmarks.masked import our_model
    from qkv.benchmarks.sides import our_step
    from qkv.tasks import Batch, Masked

    ids, hidden = _batch(windows)
    positions = torch.from_numpy(hidden.ravel().nonzero()[0])
    batch = Batch(torch.from_numpy(ids), torch.from_numpy(ids.ravel()[positions]), positions)

    def steps() -> float:
        step = our_step(our_model(D_VOCAB), Masked(), precision)
        return [step(batch) for _ in range(UPDATES)][-1]

    return steps


def _theirs(precision: str, windows: int) -> Callable[[], float]:
    import torch

    from qkv.benchmarks.masked import their_model
    from qkv.benchmarks.sides import their_step

    ids, hidden = _batch(windows)
    labels = torch.from_numpy(ids).masked_fill(torch.from_numpy(~hidden), -100)
    batch = {"input_ids": torch.from_numpy(ids), "labels": labels}
    from transformers import BertForMaskedLM  # what is loaded for it is there before the model

    assert BertForMaskedLM is not None

    def steps() -> float:
        step = their_step(their_model(D_VOCAB), precision)
        return [step(batch) for _ in range(UPDATES)][-1]

    return steps


def _batch(windows: int):  # noqa: ANN202
    """(ids int64 [windows, N_CTX], hidden bool of the same shape)."""
    from qkv.randomness import generator

    draws = generator("memory")
    return draws.integers(D_VOCAB, size=(windows, N_CTX)), draws.random((windows, N_CTX)) < 0.15


if __name__ == "__main__":
    steps = (_ours if sys.argv[1] == "ours" else _theirs)(sys.argv[2], int(sys.argv[3]))
    before = resident()
    steps()
    print(before, peak())
