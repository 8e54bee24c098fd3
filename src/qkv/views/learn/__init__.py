"""The page "What is trained in self-attention?": a trained model, forward and backward, in one file."""
