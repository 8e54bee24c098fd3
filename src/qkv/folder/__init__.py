"""The run folder: its files and who may write them, staged writes, hashes that are remembered, and checked reading."""
