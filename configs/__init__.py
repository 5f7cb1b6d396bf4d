"""The configuration: one file a choice, one folder a role."""
