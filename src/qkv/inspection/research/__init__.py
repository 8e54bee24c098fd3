"""Measures of interpretability research that are computed when asked for: of runs, imports and histories alike."""
