"""Every configuration file composes and instantiates; a new file is covered without an edit."""

import inspect
from functools import partial
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import get_class, get_method
from omegaconf import OmegaConf

from spec.blocks import FixedPolicy
from spec.costs import CostTable
from spec.errors import UserError
from spec.loop import Stopwatch
from spec.programs.frame import CONFIGS
from spec.programs.job import Job, PreparedJob
from spec.programs.parts import Parts, as_yaml, build, build_drafter, check_complete, load_target
from spec.programs.rotation import make_baseline
from spec.prompts import load_prompts
from spec.sampling import Sampling
from spec.targets import TargetSession

FOLDER = Path(CONFIGS)
NO_PARTS = ("experiment", "prompts", "recording")
CHOICES = sorted((path.parent.name, path.stem) for path in FOLDER.glob("*/*.yaml") if path.parent.name not in NO_PARTS)
EXPERIMENTS = sorted(path.stem for path in (FOLDER / "experiment").glob("[!_]*.yaml"))
PROMPTS = sorted(path.stem for path in (FOLDER / "prompts").glob("*.yaml") if path.stem != "file")
PROMPT_CLASSES = ("json_repetitive", "md_table", "code_gen", "prose", "chat")
GROUPS = {"target", "drafter", "verifier", "loop", "commit", "replay", "block", "costs"}


def composed(*overrides: str):
    with initialize_config_dir(str(FOLDER), version_base="1.3"):
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
    model = load_target(as_yaml(config.target))[0]
    drafter = build_drafter(config.drafter, model)
    parts, stopwatch = Parts(config), Stopwatch()
    session = partial(TargetSession, model, max_rollback=6)
    loop = parts.loop(
        target=session(tapped_layers=drafter.tapped_layers),
        drafter=drafter,
        verifier=parts.verifier,
        commit=parts.commit,
        block=parts.block,
        stopwatch=stopwatch,
    )
    drafter_class = config.drafter._target_.split(".")[1]
    assert type(loop.drafter).__name__ == drafter_class
    baseline = make_baseline(PreparedJob.of(Job(config=config, output=tmp_path, place=tmp_path)), session(), stopwatch)
    assert baseline.block == FixedPolicy(gamma=0)
    assert type(baseline) is type(loop)


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


def parameters(target: str) -> dict[str, inspect.Parameter]:
    """What a ``_target_`` takes; a class method that passes options on takes those of its class too."""
    made = get_method(target) if target.endswith(".load") else get_class(target)
    owner = get_class(target.removesuffix(".load"))
    return dict(inspect.signature(owner).parameters) | dict(inspect.signature(made).parameters)


WHOLE_CHOICES = ("target", "costs")  # their values are the choice itself, and no defaults


@pytest.mark.parametrize(("group", "choice"), [one for one in CHOICES if one[0] not in WHOLE_CHOICES])
def test_yaml_and_python_have_the_same_defaults(group: str, choice: str, tmp_path: Path) -> None:
    path = ["drafter.path=somewhere"] if choice == "language_model" else []
    config = composed(f"{group}={choice}", *path)[group]
    values = OmegaConf.to_container(config, resolve=True)
    takes = parameters(values["_target_"])
    for name, value in values.items():
        if name in ("_target_", "_partial_"):
            continue
        assert name in takes, name
        default = takes[name].default
        if default is inspect.Parameter.empty or name == "path":
            continue
        if isinstance(value, dict) and "_target_" in value:  # a part that Python makes where none is given
            costs = build("costs", composed("costs=m5_max").costs)
            assert build(name, config[name]) == get_class(values["_target_"])(costs=costs).behind
        else:
            assert value == default, name


def test_the_sampling_of_the_config_is_the_default() -> None:
    assert build("sampling", composed().sampling) == Sampling()


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
