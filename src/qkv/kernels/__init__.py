"""Compiled code for the processor at hand behind one interface; `reference` is the same in torch, and the oracle."""
