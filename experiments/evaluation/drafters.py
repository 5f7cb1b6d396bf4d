"""Drafters by name from the choices of ``configs/drafter``, prepared for wide passes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from omegaconf import DictConfig, OmegaConf

from models.deepseek_v4 import Model
from models.deepseek_v4.moe import evaluate_every_expert
from models.quantization import dequantize
from spec.drafters import DSparkDrafter
from spec.errors import UserError
from spec.programs.frame import CONFIGS
from spec.programs.parts import build_drafter
from spec.protocols import Drafter

GAMMA = 5  # of drafters that have no longest block of their own


@dataclass(frozen=True, kw_only=True)
class DrafterEntry:
    """A drafter to be compared.

    Attributes:
        name: as configured. drafter: the part. gamma: longest proposal.
    """

    name: str
    drafter: Drafter
    gamma: int

    @property
    def is_parallel(self) -> bool:
        """Whether it can draft at all positions at once: DSpark, whose blocks need only the target's features."""
        return isinstance(self.drafter, DSparkDrafter)


def make_drafter(name: str, entry: DictConfig, target: Model) -> DrafterEntry:
    """Builds a drafter.

    Args:
        name: for results and messages.
        entry: ``kind``, a choice of ``configs/drafter``; perhaps ``gamma``; the other keys replace the choice's own,
            such as ``path`` and ``quant``.
        target: what it drafts for.

    Raises:
        UserError: there is no such choice, a value is missing or refused, or the block is too long.
    """
    values: dict[str, Any] = OmegaConf.to_container(entry, resolve=True)
    kind, gamma = values.pop("kind", None), values.pop("gamma", None)
    place = Path(CONFIGS) / "drafter"
    choices = sorted(path.stem for path in place.glob("*.yaml"))
    if kind not in choices:
        raise UserError(f"drafters.{name}.kind: wanted one of {', '.join(choices)}, got {kind!r}")
    # Argmax drafts are judged, at every temperature.
    chosen = OmegaConf.create(
        {"sampling": {"temperature": 0.0}, "baseline": True, "drafter": OmegaConf.load(place / f"{kind}.yaml")}
    )
    chosen.drafter.merge_with(values)
    missing = sorted(key.removeprefix("drafter.") for key in OmegaConf.missing_keys(chosen.drafter))
    if missing:
        raise UserError(f"drafters.{name}: no value for {', '.join(missing)}")
    drafter: Drafter = build_drafter(chosen.drafter, target, role=f"drafters.{name}")
    longest = drafter.max_gamma
    if gamma is not None and (type(gamma) is not int or gamma < 1 or (longest is not None and gamma > longest)):
        raise UserError(f"drafters.{name}.gamma: wanted 1 to {longest or 'any'}, got {gamma!r}")
    if isinstance(drafter, DSparkDrafter):
        prepare(drafter.network, target)
        gamma = gamma or longest
    return DrafterEntry(name=name, drafter=drafter, gamma=gamma or min(GAMMA, longest or GAMMA))


def prepare(network: Any, target: Model) -> None:
    """Makes a DSpark network fast for many blocks at once; results change by rounding only."""
    dequantize(network, target.embed.weight.dtype)
    evaluate_every_expert(network)


class Features:
    """The target's features of one batch, computed once for all drafters that read the same layers.

    Args:
        target: the model. tokens: (B, S) int32.
    """

    def __init__(self, target: Model, tokens: mx.array) -> None:
        self._target, self._tokens = target, tokens
        self._known: dict[tuple[int, ...], mx.array] = {}

    def at(self, tapped_layers: tuple[int, ...]) -> mx.array | None:
        """(B, S, F), evaluated; None without tapped layers."""
        if tapped_layers and tapped_layers not in self._known:
            _, features = self._target(self._tokens, tapped_layers=tapped_layers)
            mx.eval(features)  # the logits are never asked for, so the head is not run
            self._known[tapped_layers] = features
        return self._known.get(tapped_layers)
