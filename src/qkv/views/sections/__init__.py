"""One module per section of a page: what it reads and what it hands to the picture."""
