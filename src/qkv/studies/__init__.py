"""Questions answered by experiment: a design, paired replicates with tuning inside each, and a verdict with an
interval.

engine/       what will be trained, hashed before it is, which training comes next, and where trainings are made
synthetic/    the user's text, or made tokens whose truth is known
probes/       what is measured on a trained model
verdict/      intervals, equivalence, the rule of the verdict; all that is said of effects, in figures and in words
table         the form of a study: arms and effects as tables
questions/    one file per study
"""
