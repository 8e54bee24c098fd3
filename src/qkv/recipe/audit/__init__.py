"""Is a run folder whole and true: files, checkpoints, telemetry, and updates made again."""
