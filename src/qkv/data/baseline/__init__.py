"""What needs no Transformer reaches on the same data: counting, compressing, linear models, a dictionary."""
