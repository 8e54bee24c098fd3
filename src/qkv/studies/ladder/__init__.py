"""The ladder: one effect over sizes and lengths of training, with a trend. `climb` runs it, `trend` judges it."""
