"""The rounds that a loop makes over a recorded continuation: the real loop, on a target that plays the recording."""

import mlx.core as mx

from experiments.evaluation.continuations import Continuation
from spec import FixedPolicy, FoldedLoop, RecordedTarget, Request
from spec.protocols import Drafter
from spec.rounds import Round


def walk(
    continuation: Continuation, drafter: Drafter, features: mx.array | None, gamma: int, vocab_size: int
) -> list[Round]:
    """Rounds from the first own token on, each accepting the drafts that equal the recorded tokens.

    For a greedy recording these are the rounds of greedy verification, for a sampled one those of sample matching under
    the same seed (`spec.SampleMatchVerifier`): both emit the target's own token and go on while the draft equals it.
    The recording's end is the budget, ``max_tokens``, which shortens the last blocks as in the loop.

    Args:
        continuation: the sequence.
        drafter: any; its memory starts anew.
        features: (S, F) the target's, at the drafter's tapped layers; None without tapped layers.
        gamma: longest proposal.
        vocab_size: the target's; above every id that is recorded or drafted.
    """
    tokens = continuation.tokens.tolist()
    target = RecordedTarget.of_tokens(tokens, vocab_size, features=features)
    loop = FoldedLoop(target, drafter, block=FixedPolicy(gamma=gamma))
    own = tokens[continuation.start :]
    request = Request(prompt=tokens[: continuation.start], max_tokens=len(own), reference=own)
    return [item for item in loop.rounds(request) if item.outcome != "prefill"]
