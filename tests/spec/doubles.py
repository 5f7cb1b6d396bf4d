"""Test doubles beside those of `spec.testing`: contexts, watched policies, and loops of default parts."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from spec import (
    BlockPlan,
    Context,
    FixedPolicy,
    FoldedLoop,
    RandomStream,
    RecordedTarget,
    Round,
    SpeculativeLoop,
    TargetSession,
)
from spec.protocols import BlockPolicy, Drafter, Target
from spec.testing.doubles import NosyPolicy as NosyPolicy
from spec.testing.doubles import PlannedDrafter as PlannedDrafter
from spec.testing.doubles import WrongDrafter as WrongDrafter


def context_at(anchor: int, position: int, random: RandomStream | None = None, **fields: Any) -> Context:
    """A context whose anchor stands at a position; the tokens before it are zeros."""
    return Context([0] * position + [anchor], random or RandomStream(), **fields)


def before(position: int, random: RandomStream, committed: Sequence[int] | None = None) -> Context:
    """The context of a proposal that begins at a position, after given tokens or zeros."""
    return Context([0] * position if committed is None else committed, random)


def scripted_target(script: Sequence[int], vocab_size: int = 32, **options: Any) -> RecordedTarget:
    """A target that wants ``script[p]`` at position p, whatever came before."""
    return RecordedTarget.of_tokens(script, vocab_size, **({"context_length": 10_000, "max_rollback": 16} | options))


class SpyPolicy:
    """A fixed block that also writes down the rounds it was told of."""

    def __init__(self, gamma: int) -> None:
        self.max_gamma = gamma
        self.seen: list[Round] = []

    def init(self) -> int:
        self.seen = []
        return 0

    def plan(self, state: int, tokens_left: int) -> BlockPlan:
        return FixedPolicy(gamma=self.max_gamma).plan(None, tokens_left)

    def admits(self, state: int, confidences: tuple[float, ...]) -> bool:
        return True

    def after(self, state: int, finished: Round) -> int:
        assert state == len(self.seen)
        self.seen.append(finished)
        return state + 1


class PolicyTrial:
    """A block policy with the state that a loop would keep for it."""

    def __init__(self, policy: BlockPolicy) -> None:
        self.policy, self.state = policy, policy.init()

    def gamma(self, tokens_left: int = 1000) -> int:
        return self.plan(tokens_left).gamma

    def plan(self, tokens_left: int = 1000) -> BlockPlan:
        return self.policy.plan(self.state, tokens_left)

    def admits(self, confidences: tuple[float, ...]) -> bool:
        return self.policy.admits(self.state, confidences)

    def observe(self, finished: Round) -> None:
        self.state = self.policy.after(self.state, finished)

    def reset(self) -> None:
        self.state = self.policy.init()


def make_loop(
    target: Target,
    drafter: Drafter | None = None,
    gamma: int = 0,
    shape: type[SpeculativeLoop] = FoldedLoop,
    **parts: Any,
) -> SpeculativeLoop:
    """A loop with default parts where none are given."""
    return shape(target, drafter, **({"block": FixedPolicy(gamma=gamma)} | parts))


def session(model: Any, drafter: Drafter | None = None, gamma: int = 5, **options: Any) -> TargetSession:
    """A session with the drafter's tapped layers and headroom for gamma."""
    layers = drafter.tapped_layers if drafter else ()
    return TargetSession(model, tapped_layers=layers, max_rollback=gamma + 1, **options)


def prefilled(target: Target, tokens: Sequence[int]) -> mx.array | None:
    """Features of tokens that are run together; None without tapped layers."""
    features = [rows for _, rows in target.prefill(tokens) if rows is not None]
    return mx.concatenate(features) if features else None


class Ticking:
    """A clock that advances by one second at each reading, in nanoseconds."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 10**9
        return self.now
