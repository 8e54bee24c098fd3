"""Lessons about self-attention, and a checker for a student's own attention and its backward pass (`qkv learn`)."""
