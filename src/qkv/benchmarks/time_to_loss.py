"""Whole-process time until a validation loss with default settings, beside nanoGPT's documented CPU command.

nanoGPT's command is the one in its README for a CPU: 2,000 iterations, documented loss 1.88 on 20 random windows; with
--device cuda the one for a GPU, documented best 1.4697. Data preparation is left out. Runs alternate: nanoGPT once,
then ours for every seed. A seed that misses the target is said to have missed it. Times are compared where both sides
end at the target: a command that ends elsewhere had another way to go.
"""

import re
import shutil
from pathlib import Path

from qkv.benchmarks.processes import fresh, python, qkv
from qkv.benchmarks.session import Session
from qkv.errors import RunError

NANOGPT = (
    "train.py config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=20 --log_interval=500"
    " --block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --max_iters=2000 --lr_decay_iters=2000"
    " --dropout=0.0"
)
NANOGPT_GPU = "train.py config/train_shakespeare_char.py"
_NANOGPT = "nanoGPT's command"
_NEAR = 0.05
"""Nats: the spread of a mean of 20 random windows."""


def measure(session: Session) -> None:
    """One target on one text."""
    asked = session.asked
    text = Path(asked.source) if asked.source else session.path("tinyshakespeare")
    if text is None:
        return
    values: dict[str, list[float]] = {}
    checkout = session.nanogpt()
    seconds, losses, peers, notes = [], [], {}, {}
    until = asked.until or (2.6 if asked.quick else 1.88)
    if checkout is not None and asked.quick:
        session.leave_out("nanoGPT's command, which --quick does not shorten: leave --quick out")
    elif checkout is not None:
        taken, theirs = nanogpt_command(checkout, text, NANOGPT if asked.device == "cpu" else NANOGPT_GPU)
        values[_NANOGPT] = [taken]
        notes[_NANOGPT] = f"ended at {theirs:.4f}"
        if ends_there(theirs, until):
            peers["qkv"] = _NANOGPT
        else:
            notes[_NANOGPT] += f", so times to {until:g} do not compare"
    for seed in session.seeds:
        words = ["train", str(text), "--tokenizer", asked.tokenizer or "char", "--until-loss", f"{until:g}"]
        words += ["--minutes", f"{asked.minutes[0]:g}"] if asked.minutes else []
        words += [] if asked.device == "cpu" else ["--device", asked.device]
        taken, found = qkv(*words, "--seed", str(seed), "--out", str(fresh() / "run"))
        seconds.append(taken)
        losses.append(found["val_loss"])
        session.say(
            f"seed {seed}: {found['val_loss']:.4f} nats after {found['steps']} steps, {found['tokens']:,} tokens:"
            f" {found['train_seconds']:.1f} s of training, {taken:.1f} s in all ({found['stopped_because']})"
        )
    missed = sum(loss > until for loss in losses)
    notes["qkv"] = f"{missed} of {len(losses)} seeds missed it" if missed else f"losses up to {max(losses):.4f}"
    values["qkv"] = seconds
    case = f"{text.name} until {until:g} nats"
    session.record(case, values, "s", peers={} if missed else peers, lower_is_better=True, notes=notes)


def ends_there(loss: float, until: float) -> bool:
    """Whether a command that ended at a loss had as far to go as one that stops at `until`."""
    return abs(loss - until) <= _NEAR


def nanogpt_command(folder: Path, text: Path, command: str = NANOGPT) -> tuple[float, float]:
    """The documented command on a copy of the folder: (seconds of the whole process, its lowest validation loss).

    Raises RunError where it prints no loss.
    """
    copy = fresh() / "nanogpt"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(".git"))
    shutil.copy(text, copy / "data" / "shakespeare_char" / "input.txt")
    python("data/shakespeare_char/prepare.py", cwd=copy)
    seconds, printed = python(*command.split(), cwd=copy)
    losses = re.findall(r"val loss ([0-9.]+)", printed)
    if not losses:
        raise RunError(f"nanoGPT in {folder} printed no validation loss; expected a checkout whose train.py does")
    return seconds, min(map(float, losses))
