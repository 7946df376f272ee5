"""Low-rank adapters: what they are, and the files that hold them."""
