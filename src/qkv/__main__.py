"""`python -m qkv` is the command `qkv`."""

import sys

from qkv.cli import program

if __name__ == "__main__":
    sys.exit(program())
