"""The one exception for input that a user can mend."""


class ModelError(ValueError):
    """A checkpoint, tokenizer or option that cannot be used; its message says wanted, got and remedy in one line."""
