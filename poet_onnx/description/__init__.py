"""What a training step and its optimizer are, as values that cross from a rewrite to training."""
