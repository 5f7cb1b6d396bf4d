"""What the training programs share: batches, initial weights, the optimisation loop, checkpoints, curves."""
