"""Every program's configuration composes, is complete, and says what it claims to."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

import experiments
from experiments.pair.training.judging import DSparkLossWeights
from experiments.pair.training.loop import TrainingPlan
from models.deepseek_v4 import DeepseekV4Config, LayerKind
from models.dspark import DSparkConfig

FOLDER = Path(experiments.__file__).parent
PROGRAMS = sorted(
    ".".join(path.relative_to(FOLDER).with_suffix("").parts).replace("configs.", "")
    for path in (*FOLDER.glob("configs/*.yaml"), *FOLDER.glob("pair/configs/*.yaml"))
    if path.stem != "train_drafter"  # what two others build on
)
CLASSES = {"prose", "code_gen", "json_repetitive", "md_table", "chat"}


def files_of(program: str) -> tuple[Path, Path]:
    """The program and its configuration."""
    *parts, name = program.split(".")
    folder = FOLDER.joinpath(*parts)
    return folder / f"{name}.py", folder / "configs" / f"{name}.yaml"


def composed(program: str, *overrides: str) -> DictConfig:
    file = files_of(program)[1]
    with initialize_config_dir(str(file.parent), version_base=None):
        return compose(file.stem, overrides=list(overrides))


def test_the_training_programs_are_there() -> None:
    assert set(PROGRAMS) >= {"pair.train_target", "pair.train_dspark", "pair.train_mtp"}


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_config_is_a_program_s_and_is_complete(program: str) -> None:
    source, file = files_of(program)
    assert f'config_name="{file.stem}"' in source.read_text(encoding="utf-8")
    head = file.read_text(encoding="utf-8")[:400]
    assert f"python -m experiments.{program}" in head
    config = composed(program)
    OmegaConf.resolve(config)
    assert not OmegaConf.missing_keys(config)


@pytest.mark.parametrize("program", ["pair.train_target", "pair.train_dspark"])
def test_training_plans_are_plans(program: str) -> None:
    config = composed(program, "plan.steps=7")
    plan = instantiate(config.plan)
    assert isinstance(plan, TrainingPlan)
    assert (plan.steps, plan.dtype) == (7, "bfloat16")
    assert set(config.data.shares) == CLASSES
    assert sum(config.data.shares.values()) == pytest.approx(1)
    assert config.length % 2 == 0


def test_the_target_has_every_mechanism_and_the_drafter_fits_it() -> None:
    target = composed("pair.train_target")
    config = DeepseekV4Config.from_dict(OmegaConf.to_container(target.model))
    kinds = {config.kind(layer) for layer in range(config.num_hidden_layers)}
    assert kinds == set(LayerKind)
    assert 0 < config.num_hash_layers < config.num_hidden_layers
    assert target.length // config.csa_ratio > config.index_topk
    drafter = composed("pair.train_dspark")
    assert isinstance(instantiate(drafter.weights), DSparkLossWeights)
    network = DSparkConfig.from_dict(OmegaConf.to_container(drafter.model), config, drafter.stages)
    assert network.block.sliding_window + network.block_size < drafter.length
    assert drafter.target == drafter.destination == target.destination
