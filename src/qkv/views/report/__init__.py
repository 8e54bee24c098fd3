"""The page of a run as one file: its sections read from the run folder, bundled with modules and style."""
