"""From a configuration to parts. Hydra's ``_target_`` is the registry; nothing here names a choice."""

import functools
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from spec.costs import CostTable
from spec.errors import UserError, one_line
from spec.protocols import BlockPolicy, CommitPath, Drafter, Loop, Replay, Verifier
from spec.rounds import Guarantee
from spec.sampling import Sampling


def check_complete(config: DictConfig) -> None:
    """Refuses a configuration with missing values (``???`` in a file).

    Raises:
        UserError: there are some.
    """
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise UserError(f"no value for {', '.join(missing)}: give it on the command line, as {missing[0]}=...")


def build(role: str, config: DictConfig) -> Any:
    """Instantiates a part that needs nothing but its configuration.

    Args:
        role: names the part in messages, for example ``block``.
        config: with ``_target_``.

    Raises:
        UserError: the part refuses its values, or waits for more (``_partial_: true``).
    """
    made = _made(role, config)
    if isinstance(made, functools.partial):
        raise UserError(f"{role}: its YAML says _partial_: true, but nothing is given to it at run time: remove it")
    return made


def build_with(role: str, config: DictConfig, **arguments: Any) -> Any:
    """Instantiates a part and passes it run-time arguments. Arguments and errors as `build`.

    Raises:
        UserError: also if the part is whole without the arguments, or does not take them.
    """
    made = _made(role, config)
    if not isinstance(made, functools.partial):
        raise UserError(f"{role}: {', '.join(arguments)} are given at run time: its YAML needs _partial_: true")
    return _checked(role, lambda: made(**arguments))


def _made(role: str, config: DictConfig) -> Any:
    return _checked(role, lambda: instantiate(config, _convert_="all"))


def _checked(role: str, make: Any) -> Any:
    try:
        return make()
    except InstantiationException as error:
        cause = error.__cause__
        # What is not a complaint about values is a fault of the program, and keeps its traceback.
        if cause is not None and not isinstance(cause, UserError | ValueError | OSError | TypeError):
            raise cause from error
        raise _refusal(role, cause or error) from error
    except (ValueError, OSError, TypeError) as error:
        raise _refusal(role, error) from error


def _refusal(role: str, error: BaseException) -> UserError:
    if isinstance(error, UserError):
        return error
    text = one_line(error)
    remedy = ": if it is given at run time, its YAML needs _partial_: true" if "missing" in text else ""
    return UserError(f"{role}: {text}{remedy}")


@functools.lru_cache(maxsize=1)  # the jobs of a sweep run in one process and load the target once
def load_target(config: str) -> tuple[Any, Any]:
    """Model and tokenizer.

    Args:
        config: the target's configuration as YAML, which can be compared.

    Raises:
        UserError: the checkpoint cannot be loaded.
    """
    return build("target", OmegaConf.create(config))


def build_drafter(config: DictConfig, target: Any, role: str = "drafter") -> Drafter:
    """A drafter for a loaded target; one that waits for it (``_partial_: true``) gets it.

    Every generation resets it, so that jobs with the same drafter may share it. Arguments and errors as `build`.
    """
    made = _made(role, config)
    return _checked(role, lambda: made(target=target)) if isinstance(made, functools.partial) else made


def as_yaml(config: DictConfig) -> str:
    """A configuration as text, resolved, to be a cache's key."""
    return OmegaConf.to_yaml(config, resolve=True, sort_keys=True)


class Parts:
    """The parts of one job that need no checkpoint; built first, so that a wrong value is reported before any work.

    Args:
        config: the whole configuration.

    Raises:
        UserError: a part refuses its values, or the sampling would have no effect.
    """

    def __init__(self, config: DictConfig) -> None:
        self._config = config
        self.sampling: Sampling = build("sampling", config.sampling)
        self.verifier: Verifier = build("verifier", config.verifier)
        self.commit: CommitPath = build("commit", config.commit)
        self.replay: Replay = build("replay", config.replay)
        self.block: BlockPolicy = build("block", config.block)
        self.costs: CostTable | None = None if config.costs is None else build("costs", config.costs)
        if config.clock == "virtual" and self.costs is None:
            raise UserError("clock=virtual takes its times from a cost table: choose one, for example costs=m3_ultra")
        if self.sampling != Sampling() and "${sampling" not in str(OmegaConf.to_container(config.verifier)):
            raise UserError(
                "sampling: the verifier's YAML does not take it, so that it would have no effect: add "
                "sampling: ${sampling} there"
            )

    @property
    def guarantee(self) -> Guarantee:
        """What the run keeps. At temperature 0 the law is a point mass, so that keeping it keeps the tokens."""
        guarantee = self.verifier.guarantee
        return "tokens" if guarantee == "law" and self.sampling.is_greedy else guarantee

    def loop(self, **parts: Any) -> Loop:
        """A loop of the configured shape with the configured replay.

        Args:
            **parts: ``target, drafter, verifier, commit, block, stopwatch``.

        Raises:
            UserError: the parts do not fit together.
        """
        return build_with("loop", self._config.loop, replay=self.replay, **parts)
