"""What is learned: a model, the samples of every client, their batches, gradients and measures."""
