"""From a configuration to parts. Hydra's ``_target_`` is the registry; nothing here names a choice."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from spec.blocks import FixedPolicy
from spec.clock import VirtualClock
from spec.commit import PrefixCommit
from spec.drafters import NoneDrafter
from spec.errors import UserError, one_line
from spec.measure.costs import CostTable
from spec.priced import priced
from spec.protocols import BlockPolicy, CommitPath, Drafter, Loop, Replay, Verifier
from spec.sampling import Sampling
from spec.session import TargetSession


def check_complete(config: DictConfig) -> None:
    """Refuses values that the user has yet to give (``???`` in a file).

    Raises:
        UserError: there are some.
    """
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise UserError(f"no value for {', '.join(missing)}: give it on the command line, as {missing[0]}=...")


def build(role: str, config: DictConfig, **arguments: Any) -> Any:
    """Instantiates a part; a part whose configuration is partial is then called with the arguments.

    Args:
        role: names the part in messages, for example ``block``.
        config: with ``_target_``.
        **arguments: objects that no configuration can hold; ignored for a part that is already whole.

    Raises:
        UserError: the part refuses its values.
    """
    try:
        made = instantiate(config, _convert_="all")
        return made(**arguments) if isinstance(made, functools.partial) else made
    except InstantiationException as error:
        cause = error.__cause__
        # What is not a complaint about values is a fault of the program, and keeps its traceback.
        if cause is not None and not isinstance(cause, UserError | ValueError | OSError | TypeError):
            raise cause from error
        raise _refused(role, cause or error) from error
    except (ValueError, OSError, TypeError) as error:
        raise _refused(role, error) from error


def _refused(role: str, error: BaseException) -> UserError:
    return error if isinstance(error, UserError) else UserError(f"{role}: {one_line(error)}")


@functools.lru_cache(maxsize=1)  # the jobs of a sweep run in one process and load the target once
def load_target(config: str) -> tuple[Any, Any]:
    """Model and tokenizer.

    Args:
        config: the target's configuration as YAML, which can be compared.

    Raises:
        UserError: the checkpoint cannot be loaded.
    """
    return build("target", OmegaConf.create(config))


@functools.lru_cache(maxsize=1)
def load_drafter(config: str, target_config: str) -> Drafter:
    """The drafter for a target; every generation resets it, so jobs may share it. Arguments as `load_target`."""
    return build("drafter", OmegaConf.create(config), target=load_target(target_config)[0])


def as_yaml(config: DictConfig) -> str:
    """A configuration as text, resolved, to be a cache's key."""
    return OmegaConf.to_yaml(config, resolve=True, sort_keys=True)


class Parts:
    """The parts of one job that need no checkpoint, built first so that a wrong value is said before any work.

    Args:
        config: the whole configuration.

    Raises:
        UserError: a part refuses its values.
    """

    def __init__(self, config: DictConfig) -> None:
        self._config = config
        try:
            self.sampling = Sampling(**OmegaConf.to_container(config.sampling, resolve=True))
        except TypeError as error:
            raise _refused("sampling", error) from error
        self.verifier: Verifier = build("verifier", config.verifier, sampling=self.sampling)
        self.commit: CommitPath = build("commit", config.commit)
        self.replay: Replay = build("replay", config.replay)
        self.block: BlockPolicy = build("block", config.block)
        self.costs: CostTable | None = None if config.costs is None else build("costs", config.costs)
        if config.clock == "virtual" and self.costs is None:
            raise UserError("clock=virtual takes its times from a cost table: choose one, for example costs=m3_ultra")

    def loops(self, model: Any, drafter: Drafter) -> "Loops":
        """The speculative loop, the baseline (gamma = 0 through the same code), and their sessions.

        Args:
            model: the target.
            drafter: the drafter.

        Raises:
            UserError: the parts do not fit together.
        """
        # Both caches get the same headroom: another ring size could change the order of sums, and so the last bit.
        session = functools.partial(
            TargetSession, model, max_rollback=self.block.max_gamma + 1, context=self._config.context
        )
        plain_session, speculative_session = session(), session(tapped_layers=drafter.tapped_layers)
        clock = VirtualClock() if self._config.clock == "virtual" else None

        def loop(**parts: Any) -> Loop:
            parts |= {"verifier": self.verifier, "replay": self.replay}
            return build("loop", self._config.loop, **(parts if clock is None else priced(self.costs, clock, parts)))

        speculative = loop(target=speculative_session, drafter=drafter, commit=self.commit, block=self.block)
        baseline = loop(target=plain_session, drafter=NoneDrafter(), commit=PrefixCommit(), block=FixedPolicy(gamma=0))
        return Loops(
            speculative=speculative,
            baseline=baseline,
            session=speculative_session,
            plain_session=plain_session,
            make_session=session,
        )


@dataclass(frozen=True, kw_only=True)
class Loops:
    """What a job runs.

    Attributes:
        speculative: the loop that is measured. session: its target's state.
        baseline: plain decoding through the same code. plain_session: its target's state.
        make_session: another session of the same model, headroom and context.
    """

    speculative: Loop
    baseline: Loop
    session: TargetSession
    plain_session: TargetSession
    make_session: Callable[[], TargetSession]
