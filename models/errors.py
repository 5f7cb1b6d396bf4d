"""The exception for unusable input."""


class ModelError(ValueError):
    """A checkpoint, tokenizer or option cannot be used. The one-line message says what was wanted, found, and to do."""
