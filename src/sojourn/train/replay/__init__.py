"""A schedule replayed on a PyTorch problem: gradients, server rule, checkpoints."""

from sojourn.train.replay import metrics as metrics
