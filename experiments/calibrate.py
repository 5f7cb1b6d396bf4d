"""Calibrates the confidences of a DSpark drafter: ``python -m experiments.calibrate``.

The head is trained to predict sum min(p, q), the acceptance probability of a sampled draft. How often a draft is really
accepted depends on how drafts are chosen and verified, so three cases get their own temperatures:

- ``greedy``: argmax drafts against the target's argmax.
- ``matched``: argmax drafts against the target's draws, which equal them with probability p(draft) (sample matching,
  rejection sampling of a point mass).
- ``sampled``: drafts drawn from q under rejection sampling (`experiments.evaluation.coupling`).

Each is fitted on one set of recorded continuations, at every position, and evaluated on another. The temperatures are
stored in the drafter's ``config.json`` as ``dspark_confidence_temperatures``; ``drafter.calibration`` of ``spec.run``
selects one of them. Results: `experiments/LOG.md`.

A confidence is conditional on the drafts before it. Sampled drafts are random and their acceptance depends on their
value, so even for perfect confidences the product is not exactly the survival probability. Argmax drafts are a function
of the context, and for them it is.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hydra
import numpy as np
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from experiments.evaluation.confidence_scores import ConfidenceScores, score
from experiments.evaluation.continuations import Continuation, load_continuations, members
from experiments.evaluation.diagram import draw_reliability
from experiments.evaluation.drafters import prepare
from experiments.evaluation.forecast import BINS, auroc, brier_score, expected_calibration_error
from experiments.evaluation.scaling import GRID, MIN_POSITIONS, conditional, fit_affine, fit_temperatures, survival
from experiments.pair.training.export import update_config
from experiments.results import write_json
from experiments.settings import default_dtype, texts
from models import ModelError, load_dspark, load_model
from models.deepseek_v4.moe import evaluate_every_expert
from models.dspark.config import CALIBRATIONS
from models.loading import find_checkpoint
from spec.errors import UserError
from spec.measure.environment import describe
from spec.programs.frame import run

AIM = 0.02
"""Largest calibration error wanted at any position (the paper reports 0.4 to 2.0%)."""

SHARED = 32
"""Tokens at the end of a prompt by which it is recognized."""

KEY = "dspark_confidence_temperatures"


def disjoint(judged: Sequence[Continuation], fitted: Sequence[Continuation]) -> list[Continuation]:
    """The sequences to evaluate on whose prompts do not occur in the sequences that were fitted on.

    A prompt is recognized by its last `SHARED` tokens; sequences of one named origin count as one document.
    """
    origins = {item.origin for item in fitted if item.origin}
    ends = [item.tokens[max(0, item.start - SHARED) : item.start].tobytes() for item in judged]
    runs: dict[int, set[bytes]] = {}
    for size in {len(end) for end in ends}:
        texts = [item.tokens.tobytes() for item in fitted]
        step = fitted[0].tokens.itemsize
        runs[size] = {text[at : at + size] for text in texts for at in range(0, len(text) - size + 1, step)}
    return [
        item for item, end in zip(judged, ends, strict=True) if item.origin not in origins and end not in runs[len(end)]
    ]


def judge(
    scored: ConfidenceScores, scales: np.ndarray | None = None, biases: np.ndarray | None = None
) -> list[dict[str, Any]]:
    """Forecast quality by position.

    Args:
        scored: the anchors. scales, biases: (G,) of the logits, as `conditional`.

    Returns:
        For k = 1..G: ``num_anchors``, ``predicted`` and ``observed`` means; ``ece``, ``auroc``, ``brier`` of the
        cumulative product against "drafts 1..k are accepted"; ``num_reached`` and ``conditional_ece``,
        ``conditional_auroc``, ``conditional_brier`` of the conditional confidence, over the anchors whose first k - 1
        drafts are accepted. For sampled drafts these are expectations over the acceptance of draft k: the same figures
        with less noise.
    """
    one = conditional(scored.logits, scales, biases)
    survived, reached = scored.survived, scored.is_reached
    whole = survival(one)
    rows = []
    for position in range(one.shape[1]):
        stands, is_reached = survived[:, position], reached[:, position]
        forecast, given, outcome = whole[:, position], one[is_reached, position], scored.chances[is_reached, position]
        rows.append(
            {
                "position": position + 1,
                "num_anchors": len(stands),
                "predicted": float(forecast.mean()),
                "observed": float(stands.mean()),
                "ece": expected_calibration_error(forecast, stands),
                "auroc": auroc(forecast, stands),
                "brier": brier_score(forecast, stands),
                "num_reached": int(is_reached.sum()),
                "conditional_ece": expected_calibration_error(given, outcome),
                "conditional_auroc": auroc(given, outcome),
                "conditional_brier": brier_score(given, outcome),
            }
        )
    return rows


def calibrate(
    fitted: ConfidenceScores, judged: ConfidenceScores, judged_on: Sequence[Continuation], temperature: float
) -> dict[str, Any]:
    """Fits one set and evaluates the raw, the scaled and the affine confidences.

    Args:
        fitted: scores to fit on. judged, judged_on: scores to evaluate on, and their sequences.
        temperature: of all of them.

    Returns:
        ``temperatures``; ``affine``: scales and biases, for comparison, never stored; ``num_fitted`` anchors;
        ``at_edge``: positions whose temperature is the grid's first or last; ``judged``: rows of `judge` by class and
        variant; ``fitted``: the same by variant on the set fitted on, the error that more data cannot reduce.

    Raises:
        UserError: too few anchors to fit or to evaluate on.
    """
    for name, part in (("fit", fitted), ("judge", judged)):
        if len(part.accepted) < MIN_POSITIONS:
            raise UserError(
                f"{name}: wanted {MIN_POSITIONS} positions or more at temperature {temperature:g}, got "
                f"{len(part.accepted)}: generate more with python -m experiments.pair.generate"
            )
    temperatures = fit_temperatures(fitted.logits, fitted.survived)
    scales, biases = fit_affine(fitted.logits, fitted.chances, fitted.is_reached)
    variants = {"raw": (None, None), "scaled": (1.0 / np.array(temperatures), None), "affine": (scales, biases)}
    by_class = {}
    for name in ("all", *dict.fromkeys(item.prompt_class for item in judged_on)):
        part = judged.of(members(judged_on, name, temperature))
        if len(part.accepted):
            by_class[name] = {variant: judge(part, *values) for variant, values in variants.items()}
    return {
        "temperature": temperature,
        "temperatures": list(temperatures),
        "affine": {"scales": scales.tolist(), "biases": biases.tolist()},
        "num_fitted": len(fitted.accepted),
        "at_edge": [k + 1 for k, value in enumerate(temperatures) if value in (float(GRID[0]), float(GRID[-1]))],
        "judged": by_class,
        "fitted": {variant: judge(fitted, *values) for variant, values in variants.items()},
    }


def print_result(name: str, result: Mapping[str, Any], console: Console) -> None:
    """Prints the table of one calibration, and whether it reaches `AIM`."""
    shown = ", ".join(f"{value:.3f}" for value in result["temperatures"])
    table = Table(title=f"{name} (temperature {result['temperature']:g}): divided by {shown}")
    for column in (
        "class",
        "position",
        "observed",
        "ECE raw",
        "scaled",
        "affine",
        "AUROC",
        "Brier raw",
        "scaled",
        "affine",
    ):
        table.add_column(column)
    for prompt_class, variants in result["judged"].items():
        for raw, scaled, affine in zip(variants["raw"], variants["scaled"], variants["affine"], strict=True):
            table.add_row(
                prompt_class if raw["position"] == 1 else "",
                str(raw["position"]),
                f"{raw['observed']:.3f}",
                *(f"{100 * row['ece']:.1f}%" for row in (raw, scaled, affine)),
                "-" if scaled["auroc"] is None else f"{scaled['auroc']:.3f}",
                *(f"{row['brier']:.4f}" for row in (raw, scaled, affine)),
            )
        table.add_section()
    console.print(table)
    over = [(row["position"], row["ece"]) for row in result["judged"]["all"]["scaled"] if row["ece"] > AIM]
    if over:
        named = ", ".join(f"{error:.1%} at {position}" for position, error in over)
        console.print(f"{name}: temperatures leave more than {AIM:.0%} calibration error over all classes: {named}")
        for variant in ("scaled", "affine"):
            errors = " ".join(f"{row['ece']:.1%}" for row in result["fitted"][variant])
            console.print(f"{name}: {variant}, on the very set that it was fitted on: {errors}")
    else:
        console.print(f"{name}: calibration error over all classes is at most {AIM:.0%} at every position")
    if result["at_edge"]:
        console.print(f"{name}: the temperature of position {result['at_edge']} lies at the edge of the grid")


@hydra.main(version_base=None, config_path=str(Path(__file__).parent / "configs"), config_name="calibrate")
def main(config: DictConfig) -> None:
    """Fits, evaluates, prints and draws; stores the temperatures in the drafter's configuration."""
    wanted = _wanted(config)
    path = find_checkpoint(config.drafter or config.target)
    sets = {
        name: load_continuations(texts(config[name]), temperatures=sorted(set(wanted.values())), limit=config.limit)
        for name in ("fit", "judge")
    }
    judged_on = disjoint(sets["judge"], sets["fit"])
    left_out = len(sets["judge"]) - len(judged_on)
    if not judged_on:
        raise UserError(f"every sequence of judge={config.judge} is also in fit={config.fit}: wanted other documents")
    for where, one in (("fit", sets["fit"]), ("judge", judged_on)):
        lacking = [name for name, at in wanted.items() if not any(item.temperature == at for item in one)]
        if lacking:
            raise UserError(
                f"sets: {', '.join(lacking)} cannot be fitted, {where}={config[where]} has no sequences of "
                f"temperature {wanted[lacking[0]]:g}: generate them with python -m experiments.pair.generate, or leave "
                "these sets out"
            )
    console = Console(width=None if Console().is_terminal else 150)
    dtype = config.dtype or default_dtype()
    target = load_model(config.target, dtype)
    evaluate_every_expert(target)
    network = load_dspark(path, target=target, quant=config.quant)
    prepare(network, target)
    results, scored = {}, {}
    for name, temperature in wanted.items():
        ours, theirs = ([item for item in one if item.temperature == temperature] for one in (sets["fit"], judged_on))
        sampled = temperature if name == "sampled" else None
        fitted, judged = (score(network, target, one, console, sampled, config.seed) for one in (ours, theirs))
        scored[name], results[name] = judged, calibrate(fitted, judged, theirs, temperature)
    for name, result in results.items():
        print_result(name, result, console)
    console.print(f"{left_out} sequences of judge={config.judge} share their beginning with fit and were left out")
    output = Path(config.output)
    temperatures = {name: [round(value, 4) for value in result["temperatures"]] for name, result in results.items()}
    whole = {
        "fit": texts(config.fit),
        "judge": texts(config.judge),
        "num_sequences": {"fit": len(sets["fit"]), "judge": len(judged_on), "left_out": left_out},
        "bins": BINS,
        "grid": {"least": float(GRID[0]), "most": float(GRID[-1]), "count": len(GRID), "spacing": "geometric"},
        "aim": AIM,
        "environment": describe(
            seed=config.seed, dtype=dtype, checkpoints={"target": target.path, "drafter": str(path)}
        ),
        "results": results,
    }
    write_json(output, whole)
    drawn = draw_reliability(
        output.with_suffix(".png"), {name: (scored[name], result) for name, result in results.items()}
    )
    if config.store:
        present = json.loads((path / "config.json").read_text(encoding="utf-8")).get(KEY, {})
        update_config(path, {KEY: present | temperatures})
    stored = f"{path / 'config.json'}" if config.store else "nowhere (store=false)"
    console.print(f"figures in {output}, diagram in {drawn or 'no file'}; temperatures stored in {stored}")


def _wanted(config: DictConfig) -> dict[str, float]:
    """The recordings' temperature for each set to fit.

    Raises:
        UserError: an unknown set, a sampled_temperature that is not above 0, or an invalid seed.
    """
    names = texts(config.sets)
    if not names or not set(names) <= set(CALIBRATIONS):
        raise UserError(f"sets: wanted one or more of {', '.join(CALIBRATIONS)}, got {names}")
    if type(config.seed) is not int or config.seed < 0:
        raise UserError(f"seed: wanted an integer from 0 up, got {config.seed!r}")
    is_number = type(config.sampled_temperature) in (int, float)
    if not is_number or config.sampled_temperature <= 0:
        raise UserError(f"sampled_temperature: wanted a number above 0, got {config.sampled_temperature!r}")
    return {name: 0.0 if name == "greedy" else float(config.sampled_temperature) for name in names}


if __name__ == "__main__":
    sys.exit(run(main, ModelError))
