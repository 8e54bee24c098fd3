"""Data made by a rule whose truth is known: streams of tokens and tasks on windows."""
