"""What block policies share: frozen hyperparameters, and one immutable value as the whole of what was learnt."""

from dataclasses import dataclass, field
from typing import Any

from spec.errors import UserError
from spec.protocols import BlockPlan, History, Round


@dataclass
class Memory:
    """The one place of a policy that changes."""

    state: Any = None


@dataclass(frozen=True, kw_only=True)
class LearningPolicy:
    """A block policy as three pure functions: ``initial()``, ``plan(history)``, ``after(state, round)``.

    A subclass replaces what it needs; left alone, this is the full block every round. A snapshot is the state itself.
    Policies of this package keep to these rules unless they say otherwise:

    - an early miss (``miss_first``) is a partial commit that kept nothing: it counts like any other rejection;
    - a round in which nothing was proposed (``no_draft``, ``no_room``, ``tail_skip``) or the proposal could not be
      judged (``invalid``) teaches nothing, and leaves the state as it was;
    - a block that came out shorter than asked for, for lack of room or of confidence, is judged as the block it was.

    Attributes:
        gamma: the full block: the most tokens it ever asks for, 1 or more. Not taken from the drafter, so that the
            caches can be sized before one is loaded; the loop refuses a gamma that the drafter cannot propose.

    Raises:
        UserError: gamma is not a whole number of 1 or more.
    """

    gamma: int = 5
    _memory: Memory = field(default_factory=Memory, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_whole("gamma", self.gamma, 1, "; plain decoding is block=fixed block.gamma=0")
        self._memory.state = self.initial()

    @property
    def max_gamma(self) -> int:
        """The most it can ever ask for."""
        return self.gamma

    @property
    def state(self) -> Any:
        """What it has learnt."""
        return self._memory.state

    def initial(self) -> Any:
        """The state before the first round."""
        return None

    def plan(self, history: History) -> BlockPlan:
        """The full block."""
        return BlockPlan(gamma=self.gamma)

    def after(self, state: Any, finished: Round) -> Any:
        """The state after a round. Pure."""
        return state

    def admits(self, confidences: tuple[float, ...]) -> bool:
        """Everything."""
        return True

    def reset(self) -> None:
        """Forgets the sequence."""
        self._memory.state = self.initial()

    def observe(self, finished: Round) -> None:
        """Learns from a round."""
        self._memory.state = self.after(self.state, finished)

    def snapshot(self) -> Any:
        """The state, which is immutable."""
        return self.state

    def restore(self, snapshot: Any) -> None:
        """Returns to a snapshot."""
        self._memory.state = snapshot


def was_judged(finished: Round) -> bool:
    """Whether a proposal met the target in this round."""
    return finished.outcome in ("full", "partial", "miss_first")


def check_whole(name: str, value: Any, least: int, remedy: str = "") -> None:
    """Refuses what is not a whole number of ``least`` or more.

    Args:
        name: of the key under ``block``.
        value: what was given.
        least: the smallest allowed.
        remedy: ends the message.

    Raises:
        UserError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"block.{name} must be a whole number of {least} or more, got {value!r}{remedy}")


def check_between(name: str, value: Any, least: float, most: float) -> None:
    """Refuses what is not a number in ``least..most``.

    Args:
        name: of the key under ``block``.
        value: what was given.
        least: the smallest allowed.
        most: the largest allowed.

    Raises:
        UserError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise UserError(f"block.{name} must be a number in {least}..{most}, got {value!r}")
