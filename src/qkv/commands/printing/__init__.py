"""How commands print: tables, bars, blocks of color, progress, and what `qkv train` says at the end."""
