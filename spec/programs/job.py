"""One job: a configuration, its checked values, its prompts."""

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from omegaconf import DictConfig, ListConfig
from pydantic import Field

from spec.errors import UserError
from spec.measure.benchmark import EncodedPrompt
from spec.measure.records import SUMMARY, read_summary
from spec.programs.parts import Parts, as_yaml, check_complete
from spec.prompts import Prompt, encode, load_prompts
from spec.values import checked


@checked("")
class Settings:
    """The plain keys of ``configs/config.yaml``."""

    name: str
    seed: int
    max_tokens: Annotated[int, Field(ge=1)]
    context: int | None
    prefill_chunk: Annotated[int, Field(ge=1)]
    repeats: Annotated[int, Field(ge=1)]
    clock: Literal["wall", "virtual"]
    baseline: bool
    exactness: bool
    state_check: bool
    warmup_tokens: Annotated[int, Field(ge=0)]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One configuration to run.

    Attributes:
        config: composed from ``configs/``.
        output: folder for the records.
        place: what a user is pointed to: the sweep's folder, or the job's own.
        overrides: of the command line, as Hydra was given them.
        choices: of the configuration groups, by group.
    """

    config: DictConfig
    output: Path
    place: Path
    overrides: tuple[str, ...] = ()
    choices: Mapping[str, str] = field(default_factory=dict)

    @functools.cached_property
    def config_hash(self) -> str:
        """SHA-256 of the resolved configuration: what makes one job of a sweep the same as an earlier one."""
        return hashlib.sha256(as_yaml(self.config).encode()).hexdigest()

    def finished_summary(self) -> dict[str, Any] | None:
        """The summary of this very job, if the folder holds one; None if it was never run there, or not to its end."""
        if not (self.output / SUMMARY).is_file():
            return None
        summary = read_summary(self.output)
        return summary if summary.get("config_hash") == self.config_hash else None


@dataclass(frozen=True, kw_only=True)
class PreparedJob:
    """A job whose values are known to be possible; nothing is loaded yet."""

    job: Job
    settings: Settings
    parts: Parts
    prompts: tuple[Prompt, ...]

    @classmethod
    def of(cls, job: Job) -> "PreparedJob":
        """Checks a job's values.

        Raises:
            UserError: something is wanted that cannot be done.
        """
        config = job.config
        check_complete(config)
        settings = Settings(**{item.name: config[item.name] for item in fields(Settings)})
        paths, limit = texts(config.prompts.paths), config.prompts.limit
        return cls(
            job=job,
            settings=settings,
            parts=Parts(config),
            prompts=tuple(load_prompts(paths, name=config.prompts.name, limit=limit)),
        )

    @property
    def rotation_key(self) -> str:
        """Jobs with the same key are measured in one rotation, with one baseline."""
        config, settings = self.job.config, self.settings
        # A block policy may weigh costs at will; only virtual time makes two baselines differ by them.
        costs = self.parts.costs if settings.clock == "virtual" else None
        shared = [as_yaml(config[group]) for group in ("target", "prompts", "sampling")]
        plain = [getattr(settings, item.name) for item in fields(Settings) if item.name != "name"]
        return repr((shared, plain, texts(config.stop), costs))


def encode_all(prompts: Sequence[Prompt], tokenizer: Any, context_length: int) -> list[EncodedPrompt]:
    """Token ids of the prompts.

    Args:
        prompts: at least one.
        tokenizer: mlx-lm's wrapper.
        context_length: tokens that a sequence may hold.

    Raises:
        UserError: a prompt has no tokens, or leaves no room in the context.
    """
    encoded = []
    for prompt in prompts:
        tokens = tuple(encode(prompt, tokenizer))
        if not tokens:
            raise UserError(f"prompt {prompt.prompt_id} has no tokens: wanted at least one")
        if len(tokens) >= context_length:
            raise UserError(
                f"prompt {prompt.prompt_id} has {len(tokens)} tokens, the context holds {context_length} with at least "
                "one token of output: shorten it, or take a target with a longer context"
            )
        encoded.append(EncodedPrompt(prompt_id=prompt.prompt_id, prompt_class=prompt.prompt_class, tokens=tokens))
    return encoded


def texts(value: Any) -> tuple[str, ...]:
    """A list of texts; one text counts as a list of it."""
    if not isinstance(value, str | list | tuple | ListConfig | None):
        raise UserError(f"wanted a text or a list of texts, got {value!r}")
    return (value,) if isinstance(value, str) else tuple(map(str, value or ()))
