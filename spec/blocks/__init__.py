"""Block policies: how many tokens a round proposes."""

from spec.blocks.fixed import FixedBlock

__all__ = ["FixedBlock"]
