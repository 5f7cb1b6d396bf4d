"""The rounds that a loop would make over a recorded continuation."""

from collections.abc import Sequence

import mlx.core as mx

from experiments.evaluation.continuations import Continuation
from spec.loop import outcome_of
from spec.protocols import Drafter, Round
from spec.sampling import RandomStream


def walk(continuation: Continuation, drafter: Drafter, features: mx.array | None, gamma: int) -> list[Round]:
    """Rounds from the first own token on, each accepting the drafts that equal the recorded tokens.

    For a greedy recording these are the rounds of greedy verification, for a sampled one those of sample matching under
    the same seed (`spec.SampleMatchVerifier`): both emit the target's own token and go on while the draft equals it.
    The recording's end is the budget, ``max_tokens``, which shortens the last blocks as in the loop.

    Args:
        continuation: the sequence.
        drafter: any; its memory starts anew.
        features: (S, F) the target's, at the drafter's tapped_layers; None without tapped layers.
        gamma: longest proposal.
    """
    tokens, length = continuation.tokens.tolist(), len(continuation.tokens)

    def observe(begin: int, end: int) -> None:
        drafter.observe(tokens[begin:end], None if features is None else features[begin:end])

    drafter.reset(continuation.start, reference=tokens[continuation.start :])
    observe(0, continuation.start)
    rounds: list[Round] = []
    anchor = continuation.start
    while anchor < length - 1:
        room = min(gamma, length - 2 - anchor)  # one token is left for the next token
        proposed: tuple[int, ...] = ()
        reason = "one token is left"
        if room:
            proposal = drafter.propose(tokens[anchor], anchor, room, RandomStream())
            proposed, reason = proposal.tokens, proposal.reason
        accepted = count_equal(proposed, tokens[anchor + 1 :])
        undrafted = "no_draft" if room else "no_room"
        rounds.append(
            Round(
                index=len(rounds) + 1,
                position=anchor,
                gamma=room,
                proposed=proposed,
                accepted=accepted,
                tokens=tuple(tokens[anchor + 1 : anchor + accepted + 2]),
                kind="bonus" if accepted == len(proposed) else "correction",
                outcome=outcome_of(len(proposed), accepted) if proposed else undrafted,
                reason=None if proposed else reason,
            )
        )
        observe(anchor, anchor + accepted + 1)
        anchor += accepted + 1
    return rounds


def count_equal(proposed: Sequence[int], recorded: Sequence[int]) -> int:
    """Length of the common prefix."""
    count = 0
    for draft, token in zip(proposed, recorded, strict=False):
        if draft != token:
            break
        count += 1
    return count
