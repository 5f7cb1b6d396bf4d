"""Tools for testing parts: contracts as pytest classes, and the exact law of a verifier by enumeration."""
