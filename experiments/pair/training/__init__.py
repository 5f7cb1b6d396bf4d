"""What the training programs share: batches, initial weights, the optimization loop, checkpoints, curves."""
