"""From runs to ``summary.json``: every ratio is derived here, from counts."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from spec.measure.account import account_for
from spec.measure.benchmark import PairedRun
from spec.measure.exactness import Exactness, merge
from spec.measure.generation import Generation
from spec.measure.repetition import repeated_ngram_share
from spec.measure.state import StateCheck
from spec.rounds import Round


def acceptance(rounds: Sequence[Round]) -> dict[str, Any]:
    """Acceptance of some rounds.

    Returns:
        ``tau``: mean tokens emitted a round, next token included. ``acceptance_rate``: accepted over proposed tokens.
        ``accept_rate_at``: for each position i of a block, accepted at i over proposed at i, so that a shortened block
        is no rejection. None where nothing was counted.
    """
    proposed, accepted = sum(len(item.proposed) for item in rounds), sum(item.accepted for item in rounds)
    longest = max((len(item.proposed) for item in rounds), default=0)
    return {
        "tau": sum(len(item.tokens) for item in rounds) / len(rounds) if rounds else None,
        "acceptance_rate": accepted / proposed if proposed else None,
        "accept_rate_at": [
            sum(item.accepted > at for item in rounds) / sum(len(item.proposed) > at for item in rounds)
            for at in range(longest)
        ],
    }


def speeds(runs: Sequence[PairedRun]) -> dict[str, float | None]:
    """Tokens a second and speed-up, medians over the repeats; each repeat's speed is over all its prompts."""
    repeats = sorted({item.repeat for item in runs})
    fast, plain, ratios = [], [], []
    for repeat in repeats:
        ours = [item for item in runs if item.repeat == repeat]
        speculative = _speed([item.speculative for item in ours])
        baseline = _speed([item.baseline for item in ours if item.baseline is not None])
        fast += [speculative] if speculative else []
        plain += [baseline] if baseline else []
        ratios += [speculative / baseline] if speculative and baseline else []
    return {
        "tokens_per_s": median(fast) if fast else None,
        "baseline_tokens_per_s": median(plain) if plain else None,
        "speedup": median(ratios) if ratios else None,
        "speedup_min": min(ratios) if ratios else None,
        "speedup_max": max(ratios) if ratios else None,
    }


def _speed(generations: Sequence[Generation]) -> float | None:
    count = sum(generation.num_decoded for generation in generations)
    seconds = sum(generation.decode_s for generation in generations)
    return count / seconds if count and seconds > 0 else None


def describe_group(runs: Sequence[PairedRun], exactness: Mapping[str, Exactness]) -> dict[str, Any]:
    """The figures of a prompt's runs, a class's, or all.

    Args:
        runs: at least one.
        exactness: by prompt_id.
    """
    ids = {item.prompt.prompt_id for item in runs}
    first = [item.speculative for item in runs if item.repeat == runs[0].repeat]
    return {
        "num_prompts": len(ids),
        "num_tokens": sum(len(item.speculative.tokens) for item in runs),
        **speeds(runs),
        **acceptance([item for one in runs for item in one.speculative.rounds]),
        "repeated_4gram_share": sum(repeated_ngram_share(one.tokens) for one in first) / len(first),
        "exactness": merge([value for prompt_id, value in exactness.items() if prompt_id in ids]).to_json(),
        "account": account_for([one.speculative for one in runs], [one.baseline_ms for one in runs]).to_json(),
    }


def summarize(
    *,
    experiment: str,
    prompt_class: str,
    runs: Sequence[PairedRun],
    exactness: Mapping[str, Exactness],
    state: StateCheck | None,
    overrides: Sequence[str],
    choices: Mapping[str, str],
    config_hash: str,
    environment: Mapping[str, Any],
) -> dict[str, Any]:
    """The whole ``summary.json``. Counts are over all repeats.

    Args:
        experiment: its name.
        prompt_class: the prompt set's name.
        runs: at least one.
        exactness: by prompt_id.
        state: the comparison of cache rows, if there was one.
        overrides: of the command line.
        choices: of the configuration groups.
        config_hash: of the resolved configuration.
        environment: from `spec.measure.environment.describe`, clock and costs added.
    """
    by_prompt = []
    for prompt_id in dict.fromkeys(item.prompt.prompt_id for item in runs):
        ours = [item for item in runs if item.prompt.prompt_id == prompt_id]
        head = {
            "prompt_id": prompt_id,
            "class": ours[0].prompt.prompt_class,
            "finish_reason": ours[0].speculative.finish_reason,
        }
        by_prompt.append(head | describe_group(ours, exactness))
    return {
        "experiment": experiment,
        "prompt_class": prompt_class,
        "overrides": list(overrides),
        "choices": dict(choices),
        **describe_group(runs, exactness),
        "state": None if state is None else state.to_json(),
        "environment": dict(environment),
        "by_class": [
            {"class": name, **describe_group([one for one in runs if one.prompt.prompt_class == name], exactness)}
            for name in dict.fromkeys(item.prompt.prompt_class for item in runs)
        ],
        "by_prompt": by_prompt,
        "config_hash": config_hash,
    }
