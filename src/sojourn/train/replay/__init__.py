"""A schedule replayed on a PyTorch problem: gradients, server rule, checkpoints."""
