"""Parts with a plan: drafters that are right and wrong where they are told to be, and policies that are watched."""

import pickle
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from typing_extensions import override

from spec.drafters.none import NoneDrafter
from spec.drafters.oracle import OracleDrafter
from spec.protocols import BlockPolicy, Drafter
from spec.rounds import Admits, BlockPlan, Context, Proposal, Round


def random_text(vocab_size: int, length: int, seed: int = 0) -> tuple[int, ...]:
    """Ids drawn evenly; a longer draw from the same seed begins with the shorter one."""
    draws = random.Random(seed)
    return tuple(draws.randrange(vocab_size) for _ in range(length))


class PlannedDrafter(NoneDrafter):
    """Proposes a script's tokens, with an error at chosen places, and remembers all that it was shown.

    Args:
        script: the text, prompt included.
        wrong: positions at which it errs.

    Attributes:
        seen: what it was shown since the last reset.
    """

    def __init__(self, script: Sequence[int], wrong: frozenset[int] = frozenset()) -> None:
        self.script, self.wrong = tuple(script), wrong
        self.seen: list[int] = []

    @override
    def reset(self, prompt_length: int) -> None:
        self.seen = []

    @override
    def observe(self, tokens: Sequence[int], features: mx.array | None) -> None:
        self.seen += tokens

    @override
    def propose(self, context: Context, gamma: int, admits: Admits | None = None) -> Proposal:
        known = range(context.position + 1, min(context.position + 1 + gamma, len(self.script)))
        if not known:
            return Proposal(reason="the script ends")
        return Proposal(tokens=tuple(self.script[at] ^ (1 if at in self.wrong else 0) for at in known))


class WrongDrafter(NoneDrafter):
    """Proposes what the target cannot want next: the token after the one that a plain run emits.

    Args:
        plain: what the plain run emits.
        start: the position of its first token.
        vocab_size: V.
    """

    def __init__(self, plain: Sequence[int], start: int, vocab_size: int) -> None:
        self.plain, self.start, self.vocab_size = plain, start, vocab_size

    @override
    def propose(self, context: Context, gamma: int, admits: Admits | None = None) -> Proposal:
        first = context.position + 1 - self.start
        tokens = [(token + 1) % self.vocab_size for token in self.plain[first : first + gamma]]
        return Proposal(tokens=tuple(tokens)) if tokens else Proposal(reason="the plan ends")


class ConfidentOracle(OracleDrafter):
    """The oracle with a made-up confidence at every position, which it heeds: 0 to 1, whatever the token is worth."""

    @override
    def propose(self, context: Context, gamma: int, admits: Admits | None = None) -> Proposal:
        whole = super().propose(context, gamma)
        confidence = tuple(
            context.random.uniform(context.position + 1 + at, "accept") for at in range(len(whole.tokens))
        )
        count = 0
        while count < len(confidence) and (admits is None or admits(confidence[: count + 1])):
            count += 1
        if not count:
            return Proposal(reason=whole.reason or "the block policy admits nothing")
        return Proposal(tokens=whole.tokens[:count], confidence=confidence[:count])


class MixedDrafter(NoneDrafter):
    """Remembers as another drafter does, and proposes so that any number of drafts is accepted.

    In turn: the request's known continuation with its first token wrong, with a later one wrong, nothing, the other's
    own block, and the known continuation. The other is asked every time: its block has run, and must have left nothing.

    Args:
        drafter: the other.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.tapped_layers, self.max_gamma = drafter.tapped_layers, drafter.max_gamma
        self._known = OracleDrafter(accept_rate=1.0)
        self._rounds = 0

    @override
    def reset(self, prompt_length: int) -> None:
        self.drafter.reset(prompt_length)
        self._rounds = 0

    @override
    def observe(self, tokens: Sequence[int], features: mx.array | None) -> None:
        self.drafter.observe(tokens, features)

    @override
    def propose(self, context: Context, gamma: int, admits: Admits | None = None) -> Proposal:
        own = self.drafter.propose(context, gamma, admits)
        cycle, turn = divmod(self._rounds, 5)
        self._rounds += 1
        if turn == 2:
            return Proposal(reason="a round without a proposal")
        if turn == 3:
            return own
        known = self._known.propose(context, gamma)
        wrong = {0: 0, 1: 1 + cycle, 4: gamma}[turn]
        if wrong >= len(known.tokens):
            return known
        return Proposal(tokens=tuple(token ^ (1 if at == wrong else 0) for at, token in enumerate(known.tokens)))


class NosyPolicy:
    """A block policy that looks at all it may: the next gamma depends on what was proposed and accepted before."""

    max_gamma = 2

    def init(self) -> int:
        """Nothing was proposed."""
        return 0

    def plan(self, state: int, tokens_left: int) -> BlockPlan:
        """One token or two."""
        return BlockPlan(gamma=1 + state % 2)

    def admits(self, state: int, confidences: tuple[float, ...]) -> bool:
        """Always."""
        return True

    def after(self, state: int, finished: Round) -> int:
        """A sum of all that the round tells."""
        return sum(finished.proposed) + finished.accepted


@dataclass(kw_only=True)
class WatchedRound:
    """What a block policy was asked in one round, and what it answered.

    Attributes:
        state: before the round; the object itself.
        pickled: the same, as it was then.
        tokens_left: as the loop said.
        plan: the answer.
        asked: confidences and whether they were admitted.
        finished: the round, once it has ended.
    """

    state: Any
    pickled: bytes
    tokens_left: int
    plan: BlockPlan
    asked: list[tuple[tuple[float, ...], bool]] = field(default_factory=list)
    finished: Round | None = None


class WatchedPolicy:
    """Decides as another block policy does, and writes down what it was asked.

    Args:
        policy: the other.

    Attributes:
        rounds: since the last `init`.
    """

    def __init__(self, policy: BlockPolicy) -> None:
        self.policy, self.max_gamma = policy, policy.max_gamma
        self.rounds: list[WatchedRound] = []

    def init(self) -> Any:
        """The other's."""
        self.rounds = []
        return self.policy.init()

    def plan(self, state: Any, tokens_left: int) -> BlockPlan:
        """The other's.

        Raises:
            AssertionError: the state cannot be pickled, so it is no value.
        """
        try:
            pickled = pickle.dumps(state)
        except Exception as error:
            raise AssertionError(f"the state must be a value that can be pickled, got {state!r}: {error}") from error
        plan = self.policy.plan(state, tokens_left)
        self.rounds.append(WatchedRound(state=state, pickled=pickled, tokens_left=tokens_left, plan=plan))
        return plan

    def admits(self, state: Any, confidences: tuple[float, ...]) -> bool:
        """The other's."""
        answer = self.policy.admits(state, confidences)
        self.rounds[-1].asked.append((confidences, answer))
        return answer

    def after(self, state: Any, finished: Round) -> Any:
        """The other's."""
        self.rounds[-1].finished = finished
        return self.policy.after(state, finished)
