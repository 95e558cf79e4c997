"""A schedule replayed on a problem: runs, stacks of runs, checkpoints."""
