"""The contracts of the parts, and nothing else. Read this first.

One round of the folded loop, with the part that owns each step:

    plan     = block.plan(state, tokens_left)                      BlockPolicy   gamma: how many tokens to propose
    proposal = drafter.propose(context, gamma, admits)             Drafter       d_1 .. d_gamma
    passed   = target.forward([anchor, *proposal.tokens])          Target        gamma + 1 rows, row j judges d_{j+1}
    verdict  = verifier.accept(proposal, passed.logits, context)   Verifier      the accepted prefix, the next token
    commit.adopts(kept, count): target.trim(count - kept)          CommitPath    or restore and replay
    drafter.observe(inputs[:kept], features[:kept])                Drafter       remembers every committed token
    state    = block.after(state, finished)                        BlockPolicy   what it learns is a value

Parts know nothing of each other: a verifier sees logits and random numbers, a drafter tokens and features, a commit
path two counts. The loop owns the order, the user's limits, the target's state and the time. `spec.rounds` has the
data; shapes: G proposed tokens, V vocabulary, T rows of a pass, L tapped layers, H hidden size.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol

import mlx.core as mx

from spec.rounds import Admits, BlockPlan, Context, Guarantee, Proposal, Request, Round, TargetPass, Verdict


class Target(Protocol):
    """A model and the state of one sequence; `spec.targets` has implementations."""

    vocab_size: int
    context_length: int  # tokens that a sequence may hold, prompt included
    max_rollback: int  # tokens that `trim` can take back after any pass
    can_trim: bool  # False: state cannot be cut at a prefix, so commits restore a snapshot and replay

    @property
    def offset(self) -> int:
        """Tokens in the cache."""

    def reset(self) -> None:
        """Forgets the sequence."""

    def prefill(self, tokens: Sequence[int]) -> Iterator[tuple[Sequence[int], mx.array | None]]:
        """Runs tokens whose logits nobody reads, a chunk at a time.

        Yields:
            The tokens of a chunk and their features (T, L*H), None without tapped layers.
        """

    def forward(self, tokens: Sequence[int]) -> TargetPass:
        """Runs tokens at positions ``offset ..``; their state stays until it is trimmed."""

    def trim(self, count: int) -> None:
        """Takes back the last ``count`` tokens exactly."""

    def snapshot(self) -> Any:
        """The whole state by reference."""

    def restore(self, snapshot: Any) -> None:
        """Returns to a snapshot, which stays usable."""


class Drafter(Protocol):
    """Proposes tokens. Between rounds it has observed every committed token except the anchor, and no other."""

    tapped_layers: tuple[int, ...]  # target layers whose output it wants with every committed token
    max_gamma: int | None  # the longest block it can propose; None is unlimited

    def reset(self, prompt_length: int) -> None:
        """Forgets the sequence before a new one whose prompt has ``prompt_length`` tokens."""

    def observe(self, tokens: Sequence[int], features: mx.array | None) -> None:
        """Remembers committed tokens and their features (len(tokens), L*H), in order, each exactly once."""

    def propose(self, context: Context, gamma: int, admits: Admits | None = None) -> Proposal:
        """At most ``gamma`` successors of the anchor. Leaves what is remembered as it was.

        A drafter that has confidences asks ``admits`` before each token and stops at the first refusal; one that has
        none never asks. None admits everything.
        """


class Verifier(Protocol):
    """The rule that decides which prefix of a proposal is accepted: one pure function and the promise it keeps."""

    guarantee: Guarantee  # tokens: plain decoding's very tokens; law: its distribution; none: a lossy rule

    def accept(self, proposal: Proposal, logits: mx.array, context: Context) -> Verdict:
        """Judges a proposal.

        Args:
            proposal: G tokens, perhaps none.
            logits: (G + 1, V), the target's; row j judges d_{j+1}, the last yields the bonus token. With G rows there
                is no bonus.
            context: the text before d_1, which penalties look back on, and the random numbers.
        """


class BlockPolicy(Protocol):
    """Decides how many tokens to propose, from past rounds, confidences and supplied costs. Never reads a clock.

    A policy is a frozen value. What it learns is a value too, which the loop keeps and hands back (as the step-size
    controllers of diffrax do).
    """

    max_gamma: int  # the most it can ever ask for

    def init(self) -> Any:
        """The state before the first round."""

    def plan(self, state: Any, tokens_left: int) -> BlockPlan:
        """What to propose in the coming round, gamma in 0..max_gamma, when ``tokens_left`` may still be emitted."""

    def admits(self, state: Any, confidences: tuple[float, ...]) -> bool:
        """Whether token k may be drawn, given c_1 .. c_k."""

    def after(self, state: Any, finished: Round) -> Any:
        """The state after a round."""


class CommitPath(Protocol):
    """How the target's state is made to end at what was emitted: one decision a verify pass."""

    def adopts(self, kept: int, count: int) -> bool:
        """Whether to adopt the first ``kept`` of a verify pass's ``count`` rows and trim the rest.

        If not, the loop restores the state before the pass and runs the kept tokens again. It takes a snapshot before
        the pass if the answer for any ``kept`` in 0..count is no.
        """


class Replay(Protocol):
    """How accepted tokens are run again when a commit path asks for it."""

    kind: Literal["token", "batch"]  # what a cost table charges for it

    def run(self, target: Target, tokens: Sequence[int]) -> TargetPass:
        """Runs tokens at the target's offset and returns their rows as one pass."""


class Loop(Protocol):
    """The order of the steps: from a request to rounds."""

    def rounds(self, request: Request) -> Iterator[Round]:
        """Generates; the first item is the prefill. The consumer may stop iterating at any time."""
