"""Checkpoints that ship with the library."""
