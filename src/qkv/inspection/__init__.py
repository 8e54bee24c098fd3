"""What a finished or running training says of itself: answers, token rows, neighbours, snapshots.

Works on run folders, arrays and telemetry, never on a live trainer, and needs no torch; what runs a model on a text is
in `contextual`.
"""
