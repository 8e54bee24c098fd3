"""What a study measures on a trained model besides its loss: one module per family of probes."""
