"""Every configuration file composes and instantiates; a new file is covered without an edit."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

import configs
from spec.blocks import FixedPolicy
from spec.errors import UserError
from spec.measure import CostTable
from spec.parts import Parts, as_yaml, check_complete, load_drafter, load_target
from spec.prompts import load_prompts

FOLDER = Path(configs.__file__).parent
NO_PARTS = ("experiment", "prompts", "recording")
CHOICES = sorted((path.parent.name, path.stem) for path in FOLDER.glob("*/*.yaml") if path.parent.name not in NO_PARTS)
EXPERIMENTS = sorted(path.stem for path in (FOLDER / "experiment").glob("*.yaml"))
PROMPTS = sorted(path.stem for path in (FOLDER / "prompts").glob("*.yaml") if path.stem != "file")
PROMPT_CLASSES = ("json_repetitive", "md_table", "code_gen", "prose", "chat")
GROUPS = {"target", "drafter", "verifier", "loop", "commit", "replay", "block", "costs"}


def composed(*overrides: str):
    with initialize_config_module("configs", version_base="1.3"):
        return compose("config", overrides=list(overrides))


def test_no_group_is_forgotten() -> None:
    assert {group for group, _ in CHOICES} == GROUPS


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_every_choice_makes_a_loop(
    checkpoint: Path, mtp_checkpoint: Path, tmp_path: Path, group: str, choice: str
) -> None:
    elsewhere = {"mtp": mtp_checkpoint, "language_model": checkpoint}  # drafters that are not beside the target
    paths = [f"drafter.path={elsewhere[choice]}"] if choice in elsewhere else []
    costs = ["costs=m5_max"] if group == "block" else []  # some policies weigh costs
    if choice == "this_machine":  # measured elsewhere, and then in a file
        CostTable(name="x", passes={1: 1.0}, propose={0: 0.1}).save(tmp_path / "costs.yaml")
        costs = [f"costs.path={tmp_path / 'costs.yaml'}"]
    config = composed(f"{group}={choice}", f"target.path={checkpoint}", *paths, *costs)
    check_complete(config)
    target = as_yaml(config.target)
    drafter = load_drafter(as_yaml(config.drafter), target)
    loops = Parts(config).loops(load_target(target)[0], drafter)
    drafter_class = config.drafter._target_.split(".")[1]
    assert type(loops.speculative.drafter).__name__ == drafter_class
    assert loops.baseline.block == FixedPolicy(gamma=0)
    assert type(loops.baseline) is type(loops.speculative)
    assert loops.baseline.target.max_rollback == loops.speculative.target.max_rollback


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_is_named_after_its_file_and_says_how_to_run_it(experiment: str) -> None:
    lines = (FOLDER / "experiment" / f"{experiment}.yaml").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# @package _global_"
    assert lines[1] == f"# python -m spec.run +experiment={experiment}"
    assert composed(f"+experiment={experiment}").name == experiment


@pytest.mark.parametrize("prompt_class", PROMPT_CLASSES)
@pytest.mark.parametrize("gamma", [2, 3, 5])
def test_the_blocks_of_each_class(prompt_class: str, gamma: int) -> None:
    config = composed(f"+experiment={prompt_class}_b{gamma}")
    assert (config.prompts.name, config.block.gamma) == (prompt_class, gamma)


@pytest.mark.parametrize("choice", PROMPTS)
def test_every_prompt_set_has_eight_prompts_a_class(choice: str) -> None:
    config = composed(f"prompts={choice}").prompts
    prompts = load_prompts(list(config.paths), name=config.name, limit=config.limit)
    classes = {prompt.prompt_class for prompt in prompts}
    assert classes == (set(PROMPT_CLASSES) if choice == "all" else {choice})
    for name in classes:
        assert sum(prompt.prompt_class == name for prompt in prompts) >= 8


def test_the_defaults_of_the_design() -> None:
    config = composed()
    assert config.target.path == "models/pretrained/tiny"
    assert (config.repeats, config.max_tokens, config.baseline, config.seed) == (3, 128, True, 0)
    assert config.block.gamma == 5
    assert config.sampling.temperature == 0
    assert (config.clock, config.costs) == ("wall", None)
    assert "experiment" not in config


def test_values_that_are_left_to_the_user_are_named() -> None:
    with pytest.raises(UserError, match=r"no value for target\.path"):
        check_complete(composed("target=deepseek_v4"))
    with pytest.raises(UserError, match=r"no value for prompts\.paths"):
        check_complete(composed("prompts=file"))


def test_targets_stay_under_two_prefixes() -> None:
    """So that one list of allowed prefixes covers every configuration."""
    for path in FOLDER.glob("*/*.yaml"):
        config = OmegaConf.load(path)
        for target in [config.get("_target_"), OmegaConf.select(config, "load_network._target_")]:
            assert target is None or target.split(".")[0] in ("spec", "models"), path
