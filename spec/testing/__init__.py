"""For those who write parts: the exact law of a verifier, and contracts that a part is tested against."""
