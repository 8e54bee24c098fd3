"""The questions that a run answers from its own numbers, and the order in which they are shown."""
