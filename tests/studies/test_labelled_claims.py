"""What `frozen-embeddings` says of a pretrained model where its text has labels."""

import pytest

from qkv.studies.question import Ask
from qkv.studies.questions import find
from qkv.studies.verdict.judging import Findings, judged, numbered

HELD, HEAD = "fine-tuned, W_E frozen - fine-tuned", "feature-based - fine-tuned"
AROUND = (-0.2, 0.2, -0.1, 0.1, -0.3, 0.3, 0.0, 0.05)


def claim(**means: float) -> str:
    """With the primary effect 0.1 nats, and these two as given, eight replicates each."""
    question = find("frozen-embeddings")
    design = question.design(Ask(named=("a text", "0" * 64), labelled=True))
    wanted = {design.primary.name: (0.1, 0.01), HELD: (means["held"], 1.0), HEAD: (means["head"], 1.0)}
    values = {name: numbered([mean + spread * x for x in AROUND]) for name, (mean, spread) in wanted.items()}
    effects = judged([(c, values.get(c.name, {})) for c in design.contrasts])
    found = Findings(design=design, effects=tuple(effects), arms=(), not_reached=(), trainings=0, earlier=())
    return question.claim(found)


@pytest.mark.parametrize(
    ("held", "head", "words"),
    [
        (-12.0, -18.0, "changes its accuracy on classes: -11.994 points; holding all but its head, -17.994 points)"),
        (-12.0, 0.0, "changes its accuracy on classes: -11.994 points)"),
        (0.0, -18.0, "learns classes as well with W_E held; holding all but its head, -17.994 points)"),
    ],
)
def test_what_holding_costs_a_pretrained_model_is_told_where_it_differs(held, head, words):
    assert words in claim(held=held, head=head)
