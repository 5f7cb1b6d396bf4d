"""Checkpoint files, whatever model they hold."""
