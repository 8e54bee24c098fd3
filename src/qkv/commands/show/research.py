"""`qkv show RUN --research`: measures of interpretability research, each an answer with its numbers."""

from dataclasses import dataclass
from pathlib import Path

from qkv.commands.printing import screen
from qkv.commands.show.overview import print_answer
from qkv.inspection.answers.answer import Answer
from qkv.jsontypes import JsonObject
from qkv.words import figure


@dataclass(frozen=True)
class ResearchShown:
    """What was measured."""

    path: Path
    answers: list[Answer]

    def as_json(self) -> JsonObject:
        """The run and the answers."""
        return {"run": str(self.path), "answers": [vars(answer) for answer in self.answers]}

    def print(self) -> None:
        """Each answer, and under it a table of its numbers with their intervals."""
        for rank, answer in enumerate(self.answers, 1):
            print_answer(rank, answer)
            of = answer.numbers
            ends = [end for end in ENDS if any(label.endswith(f": {end}") for label in of)]
            rows = [
                (label, figure(value), *(figure(of.get(f"{label}: {end}")) for end in ends))
                for label, value in of.items()
                if label.rpartition(": ")[2] not in ENDS
            ]
            screen.print_table(["", "value", *ends], rows)
            print()


ENDS = ("low", "high", "exact")
"""What a number may have beside it: the ends of its 95% interval, and exact patching in place of the estimate."""
