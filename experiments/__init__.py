"""Programs that answer a question about the models that ship. Run from a checkout; they are not installed."""
