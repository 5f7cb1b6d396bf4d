"""What the programs share: how they end, how a configuration becomes parts, and what one job does."""
