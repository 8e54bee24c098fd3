"""Training by several processes: who they are, and how they hold the weights, whole or in shards."""
