"""One of each kind that a package can add to qkv."""
