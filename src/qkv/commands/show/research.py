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
            rows = [
                (
                    label,
                    figure(value),
                    *(figure(of[f"{label}: {end}"]) if f"{label}: {end}" in of else "" for end in ENDS),
                )
                for label, value in of.items()
                if label.rpartition(": ")[2] not in ENDS
            ]
            columns = [i for i in range(5) if i < 2 or any(row[i] for row in rows)]
            head = ["", "value", *ENDS]
            screen.print_table([head[i] for i in columns], [tuple(row[i] for i in columns) for row in rows])
            print()


ENDS = ("low", "high", "exact")
"""What a number may have beside it: the ends of its 95% interval, and exact patching in place of the estimate."""
