"""A family of checkpoints: GPT-2's layout under another `model_type`."""

from dataclasses import replace

from qkv.interop import FAMILIES

EXAMPLE = replace(FAMILIES["gpt2"], name="example", title="Example", architecture="ExampleModel")
