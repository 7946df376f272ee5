"""Training on a device: sessions, optimizers, checkpoints."""
