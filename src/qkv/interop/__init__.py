"""Hugging Face folders in and out: one declarative name map per family, read in both directions.

`families` are the maps, `rows` and `settings` what a map is made of, `folders` how a stranger's files are read.
"""

from qkv.interop.families import FAMILIES
from qkv.interop.family import Family
from qkv.interop.importing import Imported, read_checkpoint

__all__ = ["FAMILIES", "Family", "Imported", "read_checkpoint"]
