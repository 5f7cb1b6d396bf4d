"""A drafter of known quality that plays a known text back with errors: separates the loop's cost from a drafter's."""

from typing import Annotated

from pydantic import Field
from typing_extensions import override

from spec.drafters.none import NoneDrafter
from spec.errors import UserError
from spec.rounds import Admits, Context, Proposal
from spec.values import checked_arguments

NO_REFERENCE = (
    "drafter=oracle plays back a known continuation, got none: run it with baseline=true, or give the request a "
    "reference"
)


class OracleDrafter(NoneDrafter):
    """Proposes the request's known continuation (`Request.reference`), each token right with a given probability.

    Whether a position is right depends on (seed, position) alone: a run can be repeated, and a shorter block proposes
    the same tokens.

    Args:
        accept_rate: probability that a proposed token is the known one, 0..1.
        has_reference: whether requests will have a known continuation; in a run that is the baseline's output.

    Raises:
        UserError: accept_rate lies outside 0..1, or there will be no reference.
    """

    @checked_arguments("drafter")
    def __init__(self, *, accept_rate: Annotated[float, Field(ge=0, le=1)] = 0.8, has_reference: bool = True) -> None:
        if not has_reference:
            raise UserError(NO_REFERENCE)
        self.accept_rate = accept_rate

    @override
    def propose(self, context: Context, gamma: int, admits: Admits | None = None) -> Proposal:
        """The known tokens after the anchor, some of them replaced.

        Raises:
            UserError: the request has no reference.
        """
        if context.reference is None:
            raise UserError(NO_REFERENCE)
        first = context.position + 1 - context.prompt_length
        known = context.reference[first : first + gamma]
        if not known:
            return Proposal(reason="the known continuation ends here")
        return Proposal(
            tokens=tuple(
                token
                if context.random.uniform(context.position + 1 + at, "draft") < self.accept_rate
                else _other(token)
                for at, token in enumerate(known)
            )
        )


def _other(token: int) -> int:
    """A different id that every vocabulary containing ``token`` and 0 and 1 has."""
    return token - 1 if token else 1
