"""Questions answered by experiment: a design, paired replicates with tuning inside each, and a verdict with an
interval.

engine/       what will be trained, hashed before it is, which training comes next, and where trainings are made
synthetic/    the user's text, or made tokens whose truth is known
probes/       what is measured on a trained model
verdict/      intervals, equivalence, the rule of the verdict; all that is said of effects, in figures and in words
table         the form of a study: arms and effects as tables
questions/    one file per study
"""

from qkv.studies.engine.design import Arm, Contrast, Design, Grid, Scale, Text
from qkv.studies.engine.runner import Made, Told, run_study
from qkv.studies.question import Ask, Question
from qkv.studies.questions import find, questions

__all__ = [
    "Arm",
    "Ask",
    "Contrast",
    "Design",
    "Grid",
    "Made",
    "Question",
    "Scale",
    "Text",
    "Told",
    "find",
    "questions",
    "run_study",
]
