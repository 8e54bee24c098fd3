"""An update recorded once and replayed: a CUDA graph on a GPU, a tape of calls on a CPU."""
