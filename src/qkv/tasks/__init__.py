"""What a model is trained to do: one module per task, found by name in `TASKS`."""
