"""The live page: a server over a run folder, what it answers, and who may ask."""
