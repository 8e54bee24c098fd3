"""A study of seconds: two arms, a few steps. Run as a script it is made in a process of its own, to be killed.

python tiny_study.py TEXT RUNS [WORKERS [ON MINUTES]]
"""

import sys
from pathlib import Path
from typing import Any

from qkv.studies import question as questions
from qkv.studies.engine import runner
from qkv.studies.engine.design import Arm, Design, Grid, Scale, Text, cost
from qkv.studies.question import Ask, Plain, Question, make_design

SCALE = Scale(d_model=8, n_layers=1, n_heads=1, n_ctx=8, batch_size=4, steps=8, val_tokens=256, evaluations=2)


def design(ask: Ask) -> Design:
    """Frozen against trained embeddings, tiny."""
    arms = (
        Arm(name="trained", what="everything trained", probes=("drift",)),
        Arm(name="frozen", what="W_E frozen", changes=("W_E=freeze",)),
    )
    return make_design(
        ask,
        study="tiny",
        texts={"text": Text()},
        scale=SCALE,
        grid=Grid(reach=2),
        arms=arms,
        contrasts=(cost("frozen - trained", "cost of freezing", "frozen", "trained", 0.05),),
        replicates=3,
    )


QUESTION = Question(
    name="tiny",
    asks="Does anything happen?",
    answer="cost in nats",
    falsified_by="Nothing happens.",
    literature="None.",
    design=design,
    plain=Plain(above="It does.", below="It helps.", same="No."),
)


def answer(text: Path, runs: Path, **more: Any) -> dict[str, Any]:
    """The verdict of the tiny study, in full unless asked otherwise."""
    runner.find = lambda name: QUESTION  # type: ignore[assignment]
    return runner.run_study("tiny", str(text), within=runs, **({"minutes": 3} | more))


if __name__ == "__main__":
    assert questions.QUICK_MINUTES
    more: dict[str, Any] = {"on": sys.argv[4], "minutes": float(sys.argv[5])} if len(sys.argv) > 4 else {}
    answer(Path(sys.argv[1]), Path(sys.argv[2]), workers=int(sys.argv[3]) if len(sys.argv) > 3 else 1, **more)
