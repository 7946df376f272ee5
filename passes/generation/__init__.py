"""Models for generation: their operators and their cache, out of which a plain forward pass is made."""
