"""Checkpoint files: names, census, reading and writing."""
