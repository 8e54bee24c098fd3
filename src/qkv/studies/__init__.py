"""Questions answered by experiment: a design, paired replicates with tuning inside each, and a verdict with an
interval.

design, tuning      what will be trained, hashed before it is; which training comes next
streams, tables     the user's text, or made tokens whose truth is known; tables made from counts
training, probes    one training to one row; what is measured on the trained model
workers, cluster    where they are made: here, in several processes, on the machines of a Ray cluster
runner              many small trainings, killed at any moment without loss
statistics, power   exact and t intervals, equivalence, the rule of the verdict; what that rule would find
comparison, families, verdicts    all that is said of one effect; of several asked at once; of a design
questions/          one module per study
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
