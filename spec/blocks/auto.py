"""A policy for text about which nothing is known."""

from typing import Annotated, ClassVar

from pydantic import Field
from typing_extensions import override

from spec.blocks.break_even import BreakEvenPolicy
from spec.blocks.confidence import ConfidencePolicy
from spec.protocols import BlockPolicy
from spec.values import checked


@checked("block")
class AutoPolicy(BreakEvenPolicy):
    """`ConfidencePolicy` inside `BreakEvenPolicy`: the one decides how far to draft, the other whether to.

    No algorithm of its own, and the bound of `BreakEvenPolicy`. Of the length policies tried behind that gate in the
    simulation of ``tests/spec/blocks``: ladders and windows make blocks short before the gate can see that long ones
    pay; Algorithm 1 stops before the second token on machines where the second row is dear and the third free (the
    M3 Ultra's table), although a long block pays there; a threshold does neither. With a drafter that has no confidence
    it is the full block, on or off.

    Attributes:
        gamma: the full block.
        inner: replaces the threshold by another policy; None is ``ConfidencePolicy(gamma, threshold)``.
        threshold: probability, 0..1; 0 is off.

    Raises:
        UserError: there is no table, or a value lies outside its range.
    """

    threshold: Annotated[float, Field(ge=0, le=1)] = 0.7

    name: ClassVar[str] = "auto"

    @override
    def inner_by_default(self) -> BlockPolicy:
        return ConfidencePolicy(gamma=self.gamma, threshold=self.threshold)
