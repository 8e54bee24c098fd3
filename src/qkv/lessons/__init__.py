"""Lessons about self-attention, and a checker for a student's own attention and its backward pass (`qkv learn`)."""

LESSONS = ("trained", "scores", "induction", "contextual", "identity", "size")
"""In their order; the texts are in lessons.toml, the numbers come from `facts`."""
