"""The training history of a model that was trained elsewhere, imported as one run: its step folders, one at a time."""
