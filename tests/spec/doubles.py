"""Test doubles: a target whose output is written down, drafters with a plan, and loops of default parts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from spec import (
    BlockPlan,
    FixedPolicy,
    FoldedLoop,
    GreedyVerifier,
    NoneDrafter,
    PrefixCommit,
    Proposal,
    RandomStream,
    Round,
    SpeculativeLoop,
    TargetPass,
    TargetSession,
    TokenReplay,
)
from spec.protocols import Drafter, Target


class ScriptedTarget:
    """A target that wants ``script[p]`` at position p, whatever came before; its cache is a list of what it was fed."""

    def __init__(
        self, script: Sequence[int], vocab_size: int = 32, context: int = 10_000, max_rollback: int = 16
    ) -> None:
        self.script = tuple(script)
        self.vocab_size, self.context, self.max_rollback = vocab_size, context, max_rollback
        self.rows: list[int] = []
        self.widths: list[int] = []  # of every pass with logits

    @property
    def offset(self) -> int:
        return len(self.rows)

    def reset(self) -> None:
        self.rows, self.widths = [], []

    def prefill(self, tokens: Sequence[int]) -> mx.array | None:
        self.rows += tokens
        return None

    def forward(self, tokens: Sequence[int]) -> TargetPass:
        first = len(self.rows)
        self.rows += tokens
        self.widths.append(len(tokens))
        assert len(self.rows) <= self.context
        wanted = [self.script[position + 1] for position in range(first, len(self.rows))]
        logits = (mx.arange(self.vocab_size) == mx.array(wanted)[:, None]).astype(mx.float32)
        return TargetPass(logits=logits, features=mx.array(self.rows[first:], dtype=mx.float32)[:, None])

    def verify(self, tokens: Sequence[int]) -> TargetPass:
        return self.forward(tokens)

    def trim(self, count: int) -> None:
        assert count <= self.max_rollback
        if count:
            del self.rows[-count:]

    def rewind(self, offset: int) -> None:
        del self.rows[offset:]

    def snapshot(self) -> list[int]:
        return list(self.rows)

    def restore(self, snapshot: list[int]) -> None:
        self.rows = list(snapshot)


class PlannedDrafter(NoneDrafter):
    """Proposes the script's tokens, with an error at chosen places, and remembers all that it was shown."""

    def __init__(self, script: Sequence[int], wrong: frozenset[int] = frozenset()) -> None:
        self.script, self.wrong = tuple(script), wrong
        self.seen: list[int] = []

    def reset(self, prompt_length: int, reference: Sequence[int] | None = None) -> None:
        self.seen = []

    def observe(self, tokens: Sequence[int], features: mx.array | None) -> None:
        self.seen += tokens

    def propose(self, anchor: int, position: int, gamma: int, draws: RandomStream, admits=None) -> Proposal:
        known = range(position + 1, min(position + 1 + gamma, len(self.script)))
        if not known:
            return Proposal(reason="the script ends")
        return Proposal(tokens=tuple(self.script[at] ^ (1 if at in self.wrong else 0) for at in known))

    def snapshot(self) -> int:
        return len(self.seen)

    def restore(self, snapshot: int) -> None:
        del self.seen[snapshot:]


class WrongDrafter(NoneDrafter):
    """Proposes what the target cannot want next: the token after the one that a plain run emits."""

    def __init__(self, plain: Sequence[int], start: int, vocab_size: int) -> None:
        self.plain, self.start, self.vocab_size = plain, start, vocab_size

    def propose(self, anchor: int, position: int, gamma: int, draws: RandomStream, admits=None) -> Proposal:
        first = position + 1 - self.start
        tokens = [(token + 1) % self.vocab_size for token in self.plain[first : first + gamma]]
        return Proposal(tokens=tuple(tokens)) if tokens else Proposal(reason="the plan ends")


@dataclass(kw_only=True)
class SpyPolicy:
    """A fixed block that remembers the rounds it was told of."""

    gamma: int
    seen: list[Round] = field(default_factory=list)

    @property
    def max_gamma(self) -> int:
        return self.gamma

    def reset(self) -> None:
        self.seen = []

    def plan(self, history: Any) -> BlockPlan:
        return FixedPolicy(gamma=self.gamma).plan(history)

    def admits(self, confidences: tuple[float, ...]) -> bool:
        return True

    def observe(self, finished: Round) -> None:
        self.seen.append(finished)

    def snapshot(self) -> int:
        return len(self.seen)

    def restore(self, snapshot: int) -> None:
        del self.seen[snapshot:]


def make_loop(
    target: Target,
    drafter: Drafter | None = None,
    gamma: int = 0,
    shape: type[SpeculativeLoop] = FoldedLoop,
    **parts: Any,
) -> SpeculativeLoop:
    """A loop with default parts where none are given."""
    defaults = {
        "verifier": GreedyVerifier(),
        "commit": PrefixCommit(),
        "replay": TokenReplay(),
        "block": FixedPolicy(gamma=gamma),
    }
    return shape(target=target, drafter=drafter or NoneDrafter(), **(defaults | parts))


def session(model: Any, drafter: Drafter | None = None, gamma: int = 5, **options: Any) -> TargetSession:
    """A session with the drafter's tapped_layers and headroom for gamma."""
    return TargetSession(
        model, tapped_layers=drafter.tapped_layers if drafter else (), max_rollback=gamma + 1, **options
    )


class Ticking:
    """A clock that advances by one second at each reading."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now
