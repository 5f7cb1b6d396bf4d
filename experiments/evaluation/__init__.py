"""Evaluation of drafters and their confidences on recorded continuations, without a speculative loop."""
